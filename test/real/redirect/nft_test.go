package redirect_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/dpagent/redirect"
	"github.com/sonde-mesh/sonde/internal/testing/redirecttest"
	"github.com/sonde-mesh/sonde/test/must"
)

// tables returns options with each kind of rule.
func tables() map[string]redirect.Options {
	changed := func(change func(*redirect.Options)) redirect.Options {
		o := defaults()
		change(&o)
		return o
	}
	probes := []redirect.TCPProbe{tcpProbe(9010, 3306), tcpProbe(9001, 6853), tcpProbe(9002, 6853)}
	return map[string]redirect.Options{
		"seed": defaults(),
		"exclusions": changed(func(o *redirect.Options) {
			o.ExcludeInboundPorts, o.ExcludeOutboundPorts, o.MetricsPort = []int{9800, 9000, 9800}, []int{5432, 53}, 5670
		}),
		"no exclusions, other numbers": changed(func(o *redirect.Options) {
			o.ExcludeInboundPorts, o.InboundPort, o.OutboundPort, o.User = nil, 25006, 25001, 100000
		}),
		"TCP probes":       changed(func(o *redirect.Options) { o.TCPProbes = probes }),
		"TCP probes, IPv4": changed(func(o *redirect.Options) { o.Families, o.TCPProbes = redirect.IPv4, probes }),
		"TCP probes, IPv6": changed(func(o *redirect.Options) { o.Families, o.TCPProbes = redirect.IPv6, probes }),
		"guarded":          changed(func(o *redirect.Options) { o.GuardedPort = 9000 }),
		"outbound only":    changed(func(o *redirect.Options) { o.OutboundOnly = true }),
		"gateway":          changed(func(o *redirect.Options) { o.OutboundOnly, o.Readiness, o.GuardedPort = true, true, 9000 }),
	}
}

// TestAsNftPrints compares the golden files with nft's output of the rules in the kernel.
func TestAsNftPrints(t *testing.T) {
	nft, err := exec.LookPath("nft")
	if err != nil {
		redirecttest.NotHere(t, "there is no nft on PATH to print the rules in the kernel")
	}
	for name, o := range tables() {
		t.Run(name, func(t *testing.T) {
			n := newNamespace(t)
			var out []byte
			must.Do(t, n.Do(func() (err error) {
				if err := redirect.Install(o); err != nil {
					return err
				}
				out, err = exec.Command(nft, "list", "table", "inet", redirect.TableName).Output()
				return err
			}))
			// the user id has a name on machines where Envoy is installed
			got := strings.ReplaceAll(string(out), `skuid "kuma-dp"`, "skuid 5678")
			if diff := cmp.Diff(redirect.Describe(o), got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

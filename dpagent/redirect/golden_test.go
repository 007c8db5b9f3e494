package redirect

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files, and delete orphans")

// tables are the options whose tables are in testdata.
func tables() map[string]Options {
	changed := func(change func(*Options)) Options {
		o := defaults()
		change(&o)
		return o
	}
	return map[string]Options{
		"seed":          defaults(),
		"no-exclusions": changed(func(o *Options) { o.ExcludeInboundPorts = nil }),
		"exclusions": changed(func(o *Options) {
			o.ExcludeInboundPorts, o.ExcludeOutboundPorts = []int{9800, 9000, 9800}, []int{5432, 53}
		}),
		"metrics-port":  changed(func(o *Options) { o.MetricsPort = 5670 }),
		"other-numbers": changed(func(o *Options) { o.InboundPort, o.OutboundPort, o.User = 25006, 25001, 100000 }),
		"ipv4":          changed(func(o *Options) { o.Families = IPv4 }),
		"ipv6":          changed(func(o *Options) { o.Families = IPv6 }),
		"tcp-probes": changed(func(o *Options) {
			o.TCPProbes = []TCPProbe{{9010, 3306}, {9001, 6853}, {9002, 6853}}
		}),
		"tcp-probes-ipv4": changed(func(o *Options) { o.Families, o.TCPProbes = IPv4, []TCPProbe{{9001, 6853}} }),
		"tcp-probes-ipv6": changed(func(o *Options) { o.Families, o.TCPProbes = IPv6, []TCPProbe{{9001, 6853}} }),
		"guarded":         changed(func(o *Options) { o.GuardedPort = 9000 }),
		"guarded-ipv4":    changed(func(o *Options) { o.Families, o.GuardedPort = IPv4, 9000 }),
		"outbound-only":   changed(func(o *Options) { o.OutboundOnly = true }),
		"readiness":       changed(func(o *Options) { o.OutboundOnly, o.Readiness = true, true }),
		"readiness-probes": changed(func(o *Options) {
			o.OutboundOnly, o.Readiness, o.GuardedPort, o.TCPProbes = true, true, 9000, []TCPProbe{{9001, 6853}}
		}),
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestGolden(t *testing.T) {
	made := map[string]bool{}
	for name, o := range tables() {
		path := filepath.Join("testdata", name+".nft")
		made[path] = true
		got := Describe(o)
		if *update {
			must(t, os.WriteFile(path, []byte(got), 0o644))
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Errorf("%v; go test ./dpagent/redirect -update writes it", err)
		} else if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", path, diff)
		}
	}
	files, err := filepath.Glob("testdata/*")
	must(t, err)
	for _, path := range files {
		if made[path] {
			continue
		}
		if !*update {
			t.Errorf("%s: no test creates this file; go test ./dpagent/redirect -update deletes it", path)
		} else {
			must(t, os.Remove(path))
		}
	}
}

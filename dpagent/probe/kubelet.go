package probe

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// newestKubelet is the minor version of the newest Kubernetes release that is supported. Callers without a version are
// answered as by its kubelet.
const newestKubelet = 37

// rules are what the kubelet of a version does in another way than earlier ones. Callers with the same rules share checks.
type rules uint8

const (
	// asksH2C: an httpGet with protocol HTTP2 is asked by HTTP/2 without TLS.
	asksH2C rules = 1 << iota
	// asksTLS: a grpc with mode TLS is asked by TLS, whose certificate is not verified.
	asksTLS
	// failsFast: a grpc fails with the first connection that is refused. Before, the kubelet tried until the timeout.
	failsFast
)

// changes are all that differs between the kubelets that are supported.
var changes = []struct {
	rule     rules
	since    int // minor version
	concerns func(mesh.Probe) bool
}{
	// pkg/kubelet/prober/prober.go and pkg/probe/http/http.go, ProbeH2C (KEP-5999).
	{asksH2C, 37, func(p mesh.Probe) bool { return p.HTTPGet != nil && p.HTTPGet.Protocol == mesh.HTTPGetHTTP2 }},
	// pkg/probe/grpc/grpc.go, ProbeOptions (KEP-4939).
	{asksTLS, 37, func(p mesh.Probe) bool { return p.GRPC != nil && p.GRPC.Mode == mesh.GRPCModeTLS }},
	// pkg/probe/grpc/grpc.go, NewClient in place of a DialContext that blocks (kubernetes#142457).
	{failsFast, 38, func(p mesh.Probe) bool { return p.GRPC != nil }},
}

// rulesOf returns what the kubelet of a minor version does with a probe.
func rulesOf(p mesh.Probe, minor int) (r rules) {
	for _, c := range changes {
		if minor >= c.since && c.concerns(p) {
			r |= c.rule
		}
	}
	return r
}

// asker is who asks for a check.
type asker struct {
	// agent is the user agent that the application sees.
	agent string
	rules rules
}

// askerOf returns who asks for a check of a probe.
func askerOf(r *http.Request, p mesh.Probe) asker {
	if p.Type.IsHook() {
		return askerAs(kubeletAgent(r, hookAgent+"sonde"), p)
	}
	return askerAs(kubeletAgent(r, ownAgent), p)
}

// askerAs returns who has a user agent.
func askerAs(agent string, p mesh.Probe) asker { return asker{agent, rulesOf(p, minorOf(agent))} }

// minorOf returns the minor version of the kubelet that has a user agent, newestKubelet if it says none: kube-probe/1.36, and
// kube-probe/1.33+ of some clouds.
func minorOf(agent string) int {
	version, _ := strings.CutPrefix(agent, probeAgent)
	minor, ok := strings.CutPrefix(version, "1.")
	if end := strings.IndexFunc(minor, func(c rune) bool { return c < '0' || c > '9' }); end >= 0 {
		minor = minor[:end]
	}
	if n, err := strconv.Atoi(minor); ok && err == nil {
		return n
	}
	return newestKubelet
}

// Prefixes of the kubelet's user agents. No others are passed on.
const (
	probeAgent = mesh.KubeletAgent
	hookAgent  = "kube-lifecycle/"
	// ownAgent is the user agent where the kubelet does not ask.
	ownAgent = probeAgent + "sonde"
)

// kubeletAgent returns the caller's user agent if it is the kubelet's, else another with the kubelet's prefix, since
// applications may check that.
func kubeletAgent(r *http.Request, otherwise string) string {
	const longest = 64
	agent := r.UserAgent()
	if r.ProtoMajor == 2 { // the kubelet's gRPC library appends its own
		agent, _, _ = strings.Cut(agent, " ")
	}
	version, known := strings.CutPrefix(agent, probeAgent)
	if !known {
		version, known = strings.CutPrefix(agent, hookAgent)
	}
	odd := func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !strings.ContainsRune(".+-_~", c)
	}
	if known && len(version) <= longest && !strings.ContainsFunc(version, odd) {
		return agent
	}
	return otherwise
}

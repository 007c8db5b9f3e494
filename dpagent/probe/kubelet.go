package probe

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// newestKubelet is the minor version of the newest supported Kubernetes release. Callers without a version are treated
// as a kubelet of this version.
const newestKubelet = 37

// rules are the ways in which newer kubelets probe differently from older ones. Callers with the same rules share
// checks.
type rules uint8

const (
	// asksH2C: an httpGet with protocol HTTP2 uses HTTP/2 without TLS.
	asksH2C rules = 1 << iota
	// asksTLS: a grpc probe with mode TLS uses TLS and does not verify the certificate.
	asksTLS
	// failsFast: a grpc probe fails at the first refused connection. Older kubelets retry until the timeout.
	failsFast
)

// changes are all differences between the supported kubelets.
var changes = []struct {
	rule     rules
	since    int // minor version
	concerns func(mesh.Probe) bool
}{
	// pkg/kubelet/prober/prober.go and pkg/probe/http/http.go, ProbeH2C (KEP-5999).
	{asksH2C, 37, func(p mesh.Probe) bool { return p.HTTPGet != nil && p.HTTPGet.Protocol == mesh.HTTPGetHTTP2 }},
	// pkg/probe/grpc/grpc.go, ProbeOptions (KEP-4939).
	{asksTLS, 37, func(p mesh.Probe) bool { return p.GRPC != nil && p.GRPC.Mode == mesh.GRPCModeTLS }},
	// pkg/probe/grpc/grpc.go, NewClient instead of a blocking DialContext (kubernetes#142457).
	{failsFast, 38, func(p mesh.Probe) bool { return p.GRPC != nil }},
}

// rulesOf returns the rules by which a kubelet of a minor version makes a probe.
func rulesOf(p mesh.Probe, minor int) (r rules) {
	for _, c := range changes {
		if minor >= c.since && c.concerns(p) {
			r |= c.rule
		}
	}
	return r
}

// asker is the caller for whom a check is made.
type asker struct {
	// agent is the user agent that the application sees.
	agent string
	rules rules
}

// askerOf returns the asker of a request for a probe.
func askerOf(r *http.Request, p mesh.Probe) asker {
	if p.Type.IsHook() {
		return askerAs(kubeletAgent(r, hookAgent+"sonde"), p)
	}
	return askerAs(kubeletAgent(r, ownAgent), p)
}

// askerAs returns the asker with a user agent.
func askerAs(agent string, p mesh.Probe) asker { return asker{agent, rulesOf(p, minorOf(agent))} }

// minorOf returns the minor version of the kubelet with a user agent, such as kube-probe/1.36, or kube-probe/1.33+ of
// some clouds. It returns newestKubelet if the user agent has no version.
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

// Prefixes of the kubelet's user agents. The application sees no others.
const (
	probeAgent = mesh.KubeletAgent
	hookAgent  = "kube-lifecycle/"
	// ownAgent is the user agent of checks that no kubelet requested.
	ownAgent = probeAgent + "sonde"
)

// kubeletAgent returns the caller's user agent if it is a kubelet's, or else the given one. That one must have a
// kubelet's prefix too, since applications may check the prefix.
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

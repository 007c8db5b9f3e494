package probe

import (
	"context"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// maxErrored is how often a check is made in a row if it yields no verdict.
// Source: kubernetes pkg/kubelet/prober/prober.go, maxProbeRetries.
const maxErrored = 3

// Check probes an application as the kubelet would, where there is no kubelet.
type Check struct {
	prober  prober
	by      asker
	clients clients
	timeout time.Duration
}

// NewCheck returns the check of a probe. It probes address instead of the pod. p must be valid, except for
// TimeoutSeconds, which timeout replaces.
func NewCheck(p mesh.Probe, address netip.Addr, timeout time.Duration, dial Dial) *Check {
	c := newClients(dial, address, 0) // port 0: there is no virtual port to which redirects are refused
	return &Check{prober: newProber(p, address, timeout, dial, c), by: askerAs(ownAgent, p), clients: c, timeout: timeout}
}

// Outcome is the result of one check.
type Outcome struct {
	// Verdict is success, warning, failure or errored.
	Verdict string
	// Passed means that the application can take traffic, Discarded that the check says nothing about it.
	Passed, Discarded bool
	// Class of the reason, for any verdict but success.
	Class Class
	// Reason is human-readable, at most 512 bytes. It never contains text from the application.
	Reason string
	Took   time.Duration
}

// Ask makes one check. Like the kubelet, it retries twice while there is no verdict. If ctx ends, the outcome is
// Discarded.
func (c *Check) Ask(ctx context.Context) Outcome {
	var r result
	var took time.Duration
	for range maxErrored {
		if r, took = checkOnce(c.timeout, func() result { return c.prober.probe(ctx, c.by) }); r.verdict != errored ||
			ctx.Err() != nil {
			break
		}
	}
	o := r.outcome(took)
	o.Discarded = o.Discarded || ctx.Err() != nil
	return o
}

func (r result) outcome(took time.Duration) Outcome {
	return Outcome{
		Verdict: r.verdict.String(), Passed: r.verdict == success || r.verdict == warning, Discarded: r.verdict == errored,
		Class: r.class, Reason: inWords(r.reason), Took: took,
	}
}

// inWords returns a reason without the format of gRPC errors, which the kubelet's reasons contain.
func inWords(reason string) string {
	before, code, ok := strings.Cut(reason, "rpc error: code = ")
	switch {
	case !ok:
		return reason
	case code == codes.NotFound.String():
		code += ", unknown service"
	}
	return before + "the application responded with " + code
}

// sourcePort matches the varying part of otherwise equal reasons: 127.0.0.1:40312 of "read tcp
// 127.0.0.1:40312->127.0.0.1:80".
var sourcePort = regexp.MustCompile(`\S+:\d+->`)

// Lasting returns a reason without details of a single connection.
func Lasting(reason string) string { return sourcePort.ReplaceAllString(reason, "") }

// End closes idle connections of earlier checks.
func (c *Check) End() { c.clients.close() }

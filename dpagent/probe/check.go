package probe

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// maxErrored is how often in a row a check is made that comes to no verdict.
// Source: kubernetes pkg/kubelet/prober/prober.go, maxProbeRetries.
const maxErrored = 3

// Check asks an application as the kubelet would, where no kubelet asks.
type Check struct {
	prober  prober
	by      asker
	clients clients
	timeout time.Duration
}

// NewCheck returns the check of a probe. address takes the place of the pod's. p must be valid, but for its TimeoutSeconds: the timeout of
// a check is timeout.
func NewCheck(p mesh.Probe, address netip.Addr, timeout time.Duration, dial Dial) *Check {
	c := newClients(dial, address, 0) // no redirect leads to port 0, as it would to a virtual port
	return &Check{prober: newProber(p, address, timeout, dial, c), by: askerAs(ownAgent, p), clients: c, timeout: timeout}
}

// Outcome is what one check has found.
type Outcome struct {
	// Verdict is success, warning, failure or errored.
	Verdict string
	// Passed says that the application can take traffic, Discarded that the check says nothing about it.
	Passed, Discarded bool
	// Class of the reason, for any verdict but success.
	Class Class
	// Reason is human-readable, at most 512 bytes. It never contains text from the application.
	Reason string
	Took   time.Duration
}

// Ask makes one check, and as the kubelet two more while there is no verdict. It ends with ctx, and is then Discarded.
func (c *Check) Ask(ctx context.Context) Outcome {
	var r result
	var took time.Duration
	for range maxErrored {
		if r, took = checkOnce(c.timeout, func() result { return c.prober.probe(ctx, c.by) }); r.verdict != errored || ctx.Err() != nil {
			break
		}
	}
	return Outcome{
		Verdict: r.verdict.String(), Passed: r.verdict == success || r.verdict == warning, Discarded: r.verdict == errored || ctx.Err() != nil,
		Class: r.class, Reason: inWords(r.reason), Took: took,
	}
}

// inWords returns a reason without the form of gRPC's errors, which the kubelet's has.
func inWords(reason string) string {
	before, code, ok := strings.Cut(reason, "rpc error: code = ")
	switch {
	case !ok:
		return reason
	case code == codes.NotFound.String():
		code += ", it does not know the service that the probe asks for"
	}
	return before + "the application answers " + code
}

// End closes what checks have left open.
func (c *Check) End() { c.clients.close() }

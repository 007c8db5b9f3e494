package probe

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// tcpProber opens a connection and closes it with a reset, so that no TIME_WAIT remains.
// Source: kubernetes pkg/probe/tcp/tcp.go.
type tcpProber struct {
	dial    Dial
	address string
	timeout time.Duration
}

// NewTCPCheck returns a function that checks whether a server accepts connections at an address, as a TCP probe does,
// and counts the verdicts. An error is about the application, unless it is ErrLate, or IsAgentFault reports true.
func NewTCPCheck(
	address netip.AddrPort, timeout time.Duration, dial Dial, r prometheus.Registerer,
) (func(context.Context) error, error) {
	all, err := newMetrics(r)
	if err != nil {
		return nil, err
	}
	metrics := all.of(mesh.Probe{TCPSocket: &mesh.TCPSocketProbe{}})
	a := &tcpProber{dial: dial.or(resetClose), address: address.String(), timeout: timeout}
	return func(ctx context.Context) error {
		var err error
		is, took := checkOnce(timeout, func() result {
			err = a.connect(ctx)
			return judgeTCP(err)
		})
		if ctx.Err() == nil { // else no verdict
			metrics.observe(is.verdict, took)
		}
		if is.verdict == errored && !IsAgentFault(err) {
			return fmt.Errorf("%w: %w", ErrLate, err)
		}
		return err
	}, nil
}

func newTCPProber(podIP netip.Addr, t *mesh.TCPSocketProbe, timeout time.Duration, dial Dial) *tcpProber {
	return &tcpProber{dial: dial.or(resetClose), address: hostPort(podIP, t.Port), timeout: timeout}
}

func (a *tcpProber) probe(ctx context.Context, _ asker) result {
	return judgeTCP(a.connect(ctx))
}

// judgeTCP judges an attempt to connect.
func judgeTCP(err error) result {
	if err != nil {
		return failureOf(err)
	}
	return result{verdict: success}
}

func (a *tcpProber) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	conn, err := a.dial(ctx, "tcp", a.address)
	if err != nil {
		return err
	}
	_ = conn.Close() // only the open port matters
	return nil
}

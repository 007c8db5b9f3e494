package mesh

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// banner returns how long the application's banner takes on a new connection.
func banner(ctx context.Context, at string) (time.Duration, error) {
	c := harness.NewBannerCaller(at)
	defer c.Close()
	started := time.Now()
	_, err := c.Call(ctx)
	return time.Since(started), err
}

// atOnce calls until a response arrives sooner than after the TLS inspection. On a busy machine, a single response
// may be late.
func atOnce(t *testing.T, at string) {
	t.Helper()
	must.Poll(t, "a banner at once", func(ctx context.Context) error {
		after, err := banner(ctx, at)
		if err == nil && after >= inspection/2 {
			err = fmt.Errorf("it comes after %s", after)
		}
		return err
	})
}

// afterInspection checks that a response arrives only after Envoy has waited for the client's first
// bytes.
func afterInspection(t *testing.T, at string) {
	t.Helper()
	must.Poll(t, "a banner after 1 s", func(ctx context.Context) error {
		after, err := banner(ctx, at)
		switch {
		case err == nil && after < inspection*9/10:
			t.Fatalf("the banner came after %s, before Envoy's inspection ended", after)
		case err == nil && after >= inspection*3/2:
			err = fmt.Errorf("it comes after %s", after)
		}
		return err
	})
}

func TestServerFirst(t *testing.T) {
	for _, mode := range []string{strict, permissive} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, mode)
			unmarked, marked := newInbound(t, m, "unmarked", "tcp", "banner"), newInbound(t, m, "marked", "tcp", "banner")
			marked.serverFirst = true
			p := newPair(t, m, unmarked, marked)

			t.Run("mesh client", func(t *testing.T) {
				before := p.handshakes(t, "unmarked")
				atOnce(t, p.a.Outbounds["unmarked"])
				if p.handshakes(t, "unmarked") == before {
					t.Error("no mTLS")
				}
			})
			t.Run("mesh client, marked", func(t *testing.T) {
				before := p.handshakes(t, "marked")
				atOnce(t, p.a.Outbounds["marked"])
				if mtls := p.handshakes(t, "marked") > before; mtls != (mode == strict) {
					t.Errorf("mTLS is %t in %s", mtls, mode)
				}
			})
			if mode == strict {
				var plain []net.Conn // in parallel, because each takes 3 s
				for _, i := range p.inbound {
					plain = append(plain, must.Connect(t, i.at))
				}
				for _, conn := range plain {
					if err := closedWithout(conn); err != nil {
						t.Errorf("a plain client: %v", err)
					}
				}
				return
			}
			t.Run("plain client", func(t *testing.T) { afterInspection(t, unmarked.at) })
			t.Run("plain client, marked", func(t *testing.T) { atOnce(t, marked.at) })
		})
	}
}

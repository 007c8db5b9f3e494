package mesh

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
)

// atOnce calls until an answer comes sooner than the TLS inspection would allow. On a busy machine a single one may be late.
func atOnce(t *testing.T, at string) {
	t.Helper()
	poll(t, "a banner at once", func(ctx context.Context) error {
		c := harness.NewBannerCaller(at)
		defer c.Close()
		started := time.Now()
		if _, err := call(ctx, c); err != nil {
			return err
		}
		if after := time.Since(started); after >= inspection/2 {
			return fmt.Errorf("it comes after %s", after)
		}
		return nil
	})
}

// afterInspection checks that an answer only comes after Envoy has waited for the client's first bytes.
func afterInspection(t *testing.T, at string) {
	t.Helper()
	poll(t, "a banner after 1 s", func(ctx context.Context) error {
		c := harness.NewBannerCaller(at)
		defer c.Close()
		started := time.Now()
		if _, err := call(ctx, c); err != nil {
			return err
		}
		after := time.Since(started)
		if after < inspection*9/10 {
			t.Fatalf("the banner came after %s, before Envoy can have known", after)
		}
		if after >= inspection*3/2 {
			return fmt.Errorf("it comes after %s", after)
		}
		return nil
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
				var plain []net.Conn // in parallel, since each takes 3 s
				for _, i := range p.inbound {
					plain = append(plain, connect(t, i.at))
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

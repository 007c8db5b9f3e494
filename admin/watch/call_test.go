package watch

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// drip reads a message every 9 s until the call ends, or each returns true.
func (c *caller) drip(each func(*adminv1.WatchResponse) bool) {
	for {
		select {
		case m := <-c.took:
			if each(m) {
				return
			}
			time.Sleep(sendTimeout - time.Second)
		case <-c.ended:
			return
		}
	}
}

// A viewer that reads each message in time, but not the reading, is cut off.
func TestViewerThatDrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		c := start(t, &plane{long: 20}).call(t, proxies)
		c.drip(func(*adminv1.WatchResponse) bool { return false })
		if took := time.Since(began); took > updateTimeout+sendTimeout || status.Code(c.err) != codes.Aborted {
			t.Errorf("after %s it ends with %v", took, c.err)
		}
	})
}

// Withdrawn rights and expired tokens take effect though a viewer has not read a whole reading.
func TestViewerThatDripsLosesItsRight(t *testing.T) {
	for _, code := range []codes.Code{codes.PermissionDenied, codes.Unauthenticated} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			var withdrawn atomic.Bool
			p := start(t, &plane{long: 20, rights: func(need adminv1.Right) (string, error) {
				if withdrawn.Load() && need.Resource == "proxies" {
					return "", status.Error(code, "no")
				}
				return "operator", nil
			}})
			c := p.call(t, proxies, healths)
			for time.Since(began) < 35*time.Second {
				c.read()
			}
			withdrawn.Store(true)
			denied := false
			c.drip(func(m *adminv1.WatchResponse) bool {
				denied = codes.Code(m.GetError().GetCode()) == codes.PermissionDenied
				return denied
			})
			took := time.Since(began)
			if code == codes.PermissionDenied && !denied || code == codes.Unauthenticated && status.Code(c.err) != code {
				t.Errorf("%s: after %s it ends with %v", code, took, c.err)
			}
			if took > time.Minute+2*sendTimeout { // the message in progress, and the error
				t.Errorf("%s: after %s", code, took)
			}
			c.end()
			<-c.ended
		})
	}
}

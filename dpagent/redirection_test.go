package dpagent

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
)

// TestRedirectionLost makes the kubelet send a readiness request each second, and then stop.
func TestRedirectionLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r readinessRequests
		var down atomic.Bool
		told := make(chan probe.Failure, 10)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go r.watch(ctx, func(context.Context) error {
			if down.Load() {
				return errors.New("not running")
			}
			return nil
		}, func(f probe.Failure) { told <- f })
		h := r.through(http.NotFoundHandler())
		ask := func(path string, seconds int) {
			for range seconds {
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, http.NoBody))
				<-time.After(time.Second)
			}
		}
		expect := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			if got := len(told); got != want {
				t.Errorf("%s: reported %d times, want %d", when, got, want)
			}
		}
		<-time.After(time.Minute)
		expect("never asked", 0)
		ask(mesh.PathReady, 10)
		expect("the kubelet asks", 0)
		ask("/metrics", 10)
		expect("only others ask", 1)
		<-time.After(time.Minute)
		expect("still only others ask", 1)
		ask(mesh.PathReady, 2)
		<-time.After(3 * time.Second)
		expect("a short silence", 1)
		ask(mesh.PathReady, 2)
		down.Store(true)
		<-time.After(time.Minute)
		expect("Envoy is not ready either", 1)
		down.Store(false)
		<-time.After(2 * time.Second)
		expect("Envoy is ready again", 2)
		if f := <-told; f.Container != mesh.ContainerSidecar || f.Class != redirectionLost {
			t.Errorf("reported %+v", f)
		}
	})
}

package redirect_test

import (
	"net"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/redirecttest"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestGuardedPortWaits connects to the port of guarded probes while nothing listens there: the host's connection
// waits until a listener exists. Other ports refuse it, and the pod itself is refused at that port. When a listener
// ends, its connections are reset.
func TestGuardedPortWaits(t *testing.T) {
	for family := range addresses {
		t.Run(family, func(t *testing.T) {
			w := &world{pod: newNamespace(t), host: newNamespace(t)}
			redirecttest.Join(t, w.pod, w.host, [2][]string{{pod4 + "/24", pod6 + "/64"}, {host4 + "/24", host6 + "/64"}})
			o := defaults()
			o.GuardedPort = excludedPort
			w.install(t, o)
			to := addrPort(family, "pod", excludedPort)
			wantRefused(t, w.host, root, addrPort(family, "pod", 9800))
			wantRefused(t, w.pod, root, to)

			connected := make(chan error, 1)
			go func() {
				conn, err := w.host.Dial(root, to)
				if err == nil {
					_, err = conn.Read(make([]byte, 1))
					_ = conn.Close()
				}
				connected <- err
			}()
			select {
			case err := <-connected:
				t.Errorf("the connection ends while nothing listens: %v", err)
			case <-time.After(pause):
			}
			stop := w.pod.ServeAt(t, to, func(c net.Conn) { _, _ = c.Write([]byte("x")) })
			select {
			case err := <-connected:
				must.Do(t, err)
			case <-wait.Context(t).Done():
				t.Fatal("the connection does not come to who listens now")
			}
			stop()
		})
	}
}

package probe_test

import (
	"context"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/execwire"
)

const socketOfApp = "/var/run/sonde-exec/sockets/app/socket"

func execProbe() mesh.Probe {
	return mesh.Probe{
		ID: hookID, Container: "app", Type: mesh.ProbeLiveness, TimeoutSeconds: 5, Guarded: true, FailureThreshold: 3, PeriodSeconds: 10,
		Exec: &mesh.ExecProbe{Command: []string{"/alive"}},
	}
}

// help starts a helper that answers each connection with bytes, or leaves it open without any. It returns a function
// that ends the helper.
func (p *pod) help(answer func() []byte) (end func()) {
	p.t.Helper()
	l, err := p.network.Listen(p.t.Context(), "unix", socketOfApp)
	if err != nil {
		p.t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if text := answer(); text != nil {
				_, _ = c.Write(text)
				_ = c.Close()
			} else {
				go func() {
					_, _ = c.Read(make([]byte, 1)) // until the agent disconnects
					_ = c.Close()
				}()
			}
		}
	}()
	end = func() { _ = l.Close() }
	p.t.Cleanup(end)
	return end
}

// TestExec checks the verdict for each answer of a helper. A failure reaches the kubelet at once here, as with a grant.
func TestExec(t *testing.T) {
	encoded := func(outcome execwire.Outcome, code byte) []byte {
		return execwire.Answer{Outcome: outcome, Code: code}.Encode()
	}
	tests := map[string]struct {
		answer       []byte
		want, reason string
	}{
		"exit code 0":          {encoded(execwire.Exited, 0), "success", ""},
		"exit code 1":          {encoded(execwire.Exited, 1), "failure", "the command ended with exit code 1"},
		"exit code 127":        {encoded(execwire.Exited, 127), "failure", "the command ended with exit code 127"},
		"timeout":              {encoded(execwire.TimedOut, 0), "failure", "the command timed out after 5s"},
		"no such program":      {encoded(execwire.NotStarted, byte(syscall.ENOENT)), "errored", "the command cannot be started: no such file or directory"},
		"not started, unknown": {encoded(execwire.NotStarted, 0), "errored", "the command cannot be started: unknown error"},
		"no answer":            {[]byte{}, "errored", "the helper in the container does not answer: read the answer: EOF"},
		"half an answer":       {[]byte{1}, "errored", "the helper in the container does not answer: read the answer: unexpected EOF"},
		"invalid answer":       {[]byte{9, 0}, "errored", "the helper in the container does not answer: read the answer: 9: must be 1 to 3"},
		"too long an answer":   {append(encoded(execwire.Exited, 1), strings.Repeat("secret", 1000)...), "failure", "the command ended with exit code 1"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod := newPod(t)
				pod.help(func() []byte { return tc.answer })
				p, reason := execProbe(), ""
				address := pod.serve(probe.Options{
					Table: mesh.ProbeTable{p}, Guarded: &grants{granted: true}, Failed: func(f probe.Failure) { reason = f.Reason },
				})
				if verdict, _ := pod.probe(address, "/exec/app", p.ID); verdict != tc.want || reason != tc.reason {
					t.Errorf("%s, %q, want %s, %q", verdict, reason, tc.want, tc.reason)
				}
			})
		})
	}
}

// TestExecHelperIsSilent has no helper, then one that hangs, then one that answers again: silence is Errored at first,
// and a failure after the user's threshold.
func TestExecHelperIsSilent(t *testing.T) {
	for name, hangs := range map[string]bool{"no socket": false, "it hangs": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod := newPod(t)
				end := func() {}
				if hangs {
					end = pod.help(func() []byte { return nil })
				}
				p := execProbe()
				var last atomic.Pointer[probe.Failure]
				address := pod.serve(probe.Options{
					Table: mesh.ProbeTable{p}, Guarded: &grants{granted: true}, Failed: func(f probe.Failure) { last.Store(&f) },
				})
				period := time.NewTicker(10 * time.Second)
				defer period.Stop()
				asks := func(want string, times int) {
					t.Helper()
					for range times {
						if verdict, text := pod.probe(address, "/exec/app", p.ID); verdict != want {
							t.Errorf("%s %q, want %s", verdict, text, want)
						}
						<-period.C
					}
				}
				asks("errored", 3)
				asks("failure", 2)
				if f := last.Load(); f.Class != probe.Silent || f.Verdict != "failure" || !strings.HasPrefix(f.Reason, "the helper in the container does not answer: ") {
					t.Errorf("the failure is %+v", f)
				}
				end()
				end = pod.help(func() []byte { return execwire.Answer{Outcome: execwire.Exited}.Encode() })
				asks("success", 1)
				end()
				asks("errored", 3) // the count starts again
				asks("failure", 1)
			})
		})
	}
}

// TestExecOfAStranger checks that a caller that does not know the ID cannot run the command by its path.
func TestExecOfAStranger(t *testing.T) {
	for name, known := range map[string]string{"an entry with an ID": execProbe().ID, "an entry without one": ""} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod := newPod(t)
				var ran atomic.Int32
				pod.help(func() []byte {
					ran.Add(1)
					return execwire.Answer{Outcome: execwire.Exited}.Encode()
				})
				p := execProbe()
				p.ID = known
				address := pod.serve(probe.Options{Table: mesh.ProbeTable{p}})
				for _, id := range []string{"", "app-liveness"} {
					if verdict, text := pod.probe(address, "/exec/app", id); verdict != "failure" || !strings.HasPrefix(text, "404") {
						t.Errorf("ID %q: %s %q, want 404", id, verdict, text)
					}
				}
				if ran.Load() > 0 {
					t.Error("the command ran")
				}
			})
		})
	}
}

// TestExecOften sends requests for a minute without a pause: the command runs about as often as for the kubelet, which
// probes three times in a period after Errored.
func TestExecOften(t *testing.T) {
	tests := map[string]struct {
		period int32
		most   int32
	}{"1s": {1, 4 + 60*4}, "10s": {10, 4 + 6*4}, "1h": {3600, 4 + 6*4}, "unknown": {0, 4 + 60*4}}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod := newPod(t)
				var ran atomic.Int32
				pod.help(func() []byte {
					ran.Add(1)
					return execwire.Answer{Outcome: execwire.Exited}.Encode()
				})
				p := execProbe()
				p.PeriodSeconds = tc.period
				address := pod.serve(probe.Options{Table: mesh.ProbeTable{p}})
				for end := time.Now().Add(time.Minute); time.Now().Before(end); {
					pod.probe(address, "/exec/app", p.ID)
				}
				if n := ran.Load(); n > tc.most+1 || n < tc.most-4 {
					t.Errorf("the command ran %d times, want about %d", n, tc.most)
				}
			})
		})
	}
}

// TestExecAgentFault checks that a lack of file descriptors in the agent never counts as a silent helper.
func TestExecAgentFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := execProbe()
		pod := newPod(t)
		l := pod.listen(localhost.String())
		h, err := probe.New(probe.Options{Table: mesh.ProbeTable{p}, PodIP: localhost, Port: port(l), Guarded: &grants{granted: true}, Dial: noDescriptors})
		if err != nil {
			t.Fatal(err)
		}
		pod.run(t.Context(), h, l)
		for range 2 {
			if verdict, text := pod.probe(l.Addr().String(), "/exec/app", p.ID); verdict != "errored" {
				t.Errorf("%s %q, want errored", verdict, text)
			}
			<-time.After(time.Hour)
		}
	})
}

func noDescriptors(_ context.Context, network, _ string) (net.Conn, error) {
	return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("socket", syscall.EMFILE)}
}

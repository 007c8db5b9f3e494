package probesecurity

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/sondedp"
)

// agent is a running `sonde-dp probes`, with methods to call it.
type agent struct {
	*sondedp.Agent
	t testing.TB
}

// startAgent starts sonde-dp probes for the table on a port of the pod.
func (p *pod) startAgent(port int, table mesh.ProbeTable) *agent {
	p.t.Helper()
	env, err := table.Encode()
	if err != nil {
		p.t.Fatal(err)
	}
	running, err := sondedp.Start(agentProgram, netip.AddrPortFrom(p.ip, uint16(port)), slog.LevelInfo, env)
	if err != nil {
		p.t.Fatal(err)
	}
	a := &agent{Agent: running, t: p.t}
	p.t.Cleanup(a.stop)
	return a
}

func (a *agent) stop() {
	if err := a.Stop(); err != nil {
		a.t.Error(err)
	}
	log := a.Log()
	if strings.Contains(log, "worker ended") {
		a.t.Error("the worker died")
	}
	if a.t.Failed() {
		a.t.Logf("the end of the agent's log:\n%s", log[max(0, len(log)-4000):])
	}
}

// processes returns the ids of the guard and its worker.
func (a *agent) processes() []int {
	a.t.Helper()
	worker, err := a.Worker()
	if err != nil {
		a.t.Fatal(err)
	}
	return []int{a.Guard(), worker}
}

// callLimit is far longer than any response here takes.
const callLimit = 10 * time.Second

// call sends bytes on a new connection, and returns everything it receives until the end.
func (a *agent) call(request string) string {
	a.t.Helper()
	answer, err := a.try(request)
	if err != nil {
		a.t.Errorf("call with %.200q: %v", request, err)
	}
	return answer
}

func (a *agent) try(request string) (string, error) {
	c, err := net.Dial("tcp", a.Address)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }() // everything was read
	if err := c.SetDeadline(time.Now().Add(callLimit)); err != nil {
		return "", err
	}
	_, writeErr := io.WriteString(c, request) // the agent may respond and close before it has read everything
	answer, err := io.ReadAll(c)
	if errors.Is(err, syscall.ECONNRESET) {
		err = nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errors.Join(err, writeErr)
	}
	return string(answer), err
}

// probe makes a probe as the kubelet does, and returns the whole response.
func (a *agent) probe(path, id string) string {
	a.t.Helper()
	return a.call(a.request(path, id))
}

func (a *agent) request(path, id string, headers ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: kube-probe/1.36\r\nAccept: */*\r\nConnection: close\r\n", path, a.Address)
	if id != "" {
		fmt.Fprintf(&b, "%s: %s\r\n", mesh.ProbeHeader, id)
	}
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	return b.String() + "\r\n"
}

// statusOf returns the status of a response, or "".
func statusOf(answer string) string {
	line, _, _ := strings.Cut(answer, "\r\n")
	version, rest, _ := strings.Cut(line, " ")
	if !strings.HasPrefix(version, "HTTP/1.") || len(rest) < 3 {
		return ""
	}
	return rest[:3]
}

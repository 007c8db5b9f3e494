package cases

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// tcpPorts has a TCP probe of each kind of port.
func tcpPorts() []Case {
	speaksFirst := steps(send("220 hello\r\n"), hangs)
	notesWhatComes := func(x *exchange) {
		buffer := make([]byte, 100)
		n, _ := x.conn.Read(buffer) // returns at the end or a reset
		x.note("read %q\n", buffer[:n])
	}
	neverAccepts, full := server{listen: listenDeaf, connection: hangs}, server{listen: listenFull, connection: hangs}
	return []Case{
		{Name: "TCP open", Want: Verdicts{Success}, probe: tcp, servers: raw(hangs)},
		{Name: "TCP refused", Want: Verdicts{Failure}, probe: tcpClosed, Process: true},
		{Name: "TCP open, closes at once", Want: Verdicts{Success}, probe: tcp, servers: raw(closes)},
		// The kubelet may or may not see a reset that arrives sooner.
		{Name: "TCP open, resets soon", Want: Verdicts{Success}, probe: tcp, timing: true, servers: raw(steps(pause(0.2), resets))},
		{Name: "TCP open, server speaks first", Want: Verdicts{Success}, probe: tcp, servers: raw(speaksFirst)},
		{Name: "TCP open, what the server reads", Want: Verdicts{Success}, probe: tcp, servers: raw(notesWhatComes)},
		{Name: "TCP late, after the probe", Want: Verdicts{Failure}, probe: tcp, servers: app(server{late: time.Hour, answer: ok})},
		{Name: "TCP open, never accepted", Want: Verdicts{Success}, probe: tcp, servers: app(neverAccepts)},
		{Name: "TCP backlog full", Want: Verdicts{Failure}, probe: tcp, timeout: 1, servers: app(full)},
	}
}

// listenDeaf creates a listener that accepts nothing.
func listenDeaf(address string) (net.Listener, error) {
	l, err := ListenSoon(address)
	return &fullListener{Listener: l, ended: make(chan struct{})}, err
}

// listenFull creates a listener that accepts nothing and whose backlog is full.
func listenFull(address string) (net.Listener, error) {
	l, err := ListenSoon(address)
	if err != nil {
		return nil, err
	}
	full := &fullListener{Listener: l, ended: make(chan struct{})}
	if err := shorten(l.(*net.TCPListener)); err != nil {
		return nil, err
	}
	for range 10 {
		dialer := net.Dialer{Timeout: 300 * time.Millisecond}
		conn, err := dialer.DialContext(context.Background(), "tcp", address)
		if err != nil {
			return full, nil //nolint:nilerr // the backlog is full, as intended
		}
		full.conns = append(full.conns, conn)
	}
	return nil, fmt.Errorf("fill the backlog of %s: it is still not full", address)
}

type fullListener struct {
	net.Listener
	conns []net.Conn
	ended chan struct{}
}

func (l *fullListener) Accept() (net.Conn, error) {
	<-l.ended
	return nil, net.ErrClosed
}

func (l *fullListener) Close() error {
	select {
	case <-l.ended:
	default:
		close(l.ended)
		for _, conn := range l.conns {
			_ = conn.Close() // the connection was never accepted
		}
	}
	return l.Listener.Close()
}

// portsAndHosts has probes of a named port, of another host, and of names that do not resolve.
func portsAndHosts() []Case {
	var all []Case
	for _, r := range []struct {
		name          string
		want, until36 Verdict
		unchanged     bool
		port          string
	}{
		{"by name", Success, Success, false, "web"},
		{"by the name of a closed one", Failure, Failure, false, "shut"},
		{"by an unknown name", Errored, Errored, true, "nosuch"},
		{"by another container's name", Errored, Errored, true, "theirs"},
		{"by a number in quotes", Errored, Success, true, "PORT"}, // pkg/probe/util.go, ResolveContainerPort; no API server takes it
	} {
		overHTTP := func(p PodAddress) corev1.ProbeHandler {
			h := get("/probe")(p)
			h.HTTPGet.Port = intstr.FromString(p.fill(r.port))
			return h
		}
		overTCP := func(p PodAddress) corev1.ProbeHandler { return tcpSocket(intstr.FromString(p.fill(r.port))) }
		for number, probe := range []probeHandler{overHTTP, overTCP} {
			all = append(all, Case{
				Name: "port " + []string{"HTTP ", "TCP "}[number] + r.name, Want: Verdicts{r.want}, Until36: Verdicts{r.until36}, Unchanged: r.unchanged,
				Containers: withNamedPorts(Case{probe: probe, Number: number}),
			})
		}
	}
	for _, r := range []struct {
		name      string
		host      string
		want, tcp Verdict // tcp is a TCP probe's, or ""
	}{
		{"of the pod", "IP", Success, Success},
		{"of another address", "127.0.0.253", Failure, Failure},
		{"of an unknown name", "nosuch.invalid", Failure, Failure},
		{"that is invalid", "a b", Errored, ""},
	} {
		overHTTP := func(p PodAddress) corev1.ProbeHandler {
			h := get("/probe")(p)
			h.HTTPGet.Host = p.fill(r.host)
			return h
		}
		overTCP := func(p PodAddress) corev1.ProbeHandler {
			return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Host: p.fill(r.host), Port: port(p.App)}}
		}
		all = append(all, Case{Name: "host " + r.name + ", HTTP", Want: Verdicts{r.want}, Unchanged: true, timeout: 5, probe: overHTTP})
		if r.tcp != "" {
			all = append(all, Case{Name: "host " + r.name + ", TCP", Want: Verdicts{r.tcp}, Unchanged: true, timeout: 5, probe: overTCP})
		}
	}
	return all
}

// withNamedPorts returns the container of a case with named ports, and another container that has some of the same
// names.
func withNamedPorts(c Case) func(PodAddress) []corev1.Container {
	return func(p PodAddress) []corev1.Container {
		app := c.one(p)
		app.Ports = []corev1.ContainerPort{
			{Name: "metrics", ContainerPort: int32(p.More[0])}, {Name: "web", ContainerPort: int32(p.App)},
			{Name: "shut", ContainerPort: int32(p.Closed)},
		}
		other := corev1.Container{Name: "other", Ports: []corev1.ContainerPort{
			{Name: "theirs", ContainerPort: int32(p.App)}, {Name: "web", ContainerPort: int32(p.Closed)},
		}}
		return []corev1.Container{other, app}
	}
}

// addresses are pods with other kinds of addresses.
func addresses() []Case {
	redirected := func(location string) servers { return http1(inTurn(redirect(location), reply(200, ""))) }
	query := get("/probe?a=b")
	var all []Case
	for _, ip := range []string{"::1", "127.0.0.1"} {
		for _, c := range []Case{
			{Name: "HTTP", Want: Verdicts{Success}, probe: query},
			{Name: "HTTP with a Host", Want: Verdicts{Success}, probe: get("/", header("host", "x"))},
			{Name: "HTTPS", Want: Verdicts{Success}, probe: getTLS("/"), servers: https(ok)},
			{Name: "TCP open", Want: Verdicts{Success}, probe: tcp},
			{Name: "TCP refused", Want: Verdicts{Failure}, probe: tcpClosed},
			{Name: "gRPC", Want: Verdicts{Success}, probe: grpcHealth("a"), servers: http2c(health(1))},
			{Name: "redirect to itself", Want: Verdicts{Success}, probe: query, servers: redirected("http://IP:PORT/new")},
			{Name: "redirect to the virtual port", Want: Verdicts{Failure}, probe: query, servers: redirected("http://IP:VIRTUAL/new")},
			{Name: "redirect to localhost", Want: Verdicts{Warning}, probe: query, servers: redirected("http://localhost:PORT/")},
			{Name: "redirect to ::1 in full", At: "::1", Want: Verdicts{Warning}, probe: query, servers: redirected("http://[0:0:0:0:0:0:0:1]:PORT/")},
			{Name: "redirect to ::1 with a zone", At: "::1", Want: Verdicts{Warning}, probe: query, servers: redirected("http://[::1%25lo]:PORT/")},
		} {
			if c.At = cmp.Or(c.At, ip); c.At == ip {
				c.Name = "at " + ip + " " + c.Name
				all = append(all, c)
			}
		}
	}
	return all
}

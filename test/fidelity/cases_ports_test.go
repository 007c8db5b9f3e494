package fidelity_test

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
)

// tcpPorts is a TCP probe of each kind of port.
func tcpPorts() []testCase {
	speaksFirst := steps(send("220 hello\r\n"), hangs)
	notesWhatComes := func(x *exchange) {
		buffer := make([]byte, 100)
		n, _ := x.conn.Read(buffer) // the end, or a reset
		x.note("read %q\n", buffer[:n])
	}
	neverAccepts, full := server{listen: listenDeaf, connection: hangs}, server{listen: listenFull, connection: hangs}
	return []testCase{
		{name: "TCP open", want: verdicts{success}, probe: tcp, servers: raw(hangs)},
		{name: "TCP refused", want: verdicts{failure}, probe: tcpClosed, process: true},
		{name: "TCP open, closes at once", want: verdicts{success}, probe: tcp, servers: raw(closes)},
		// A reset that comes sooner may or may not be seen by the kubelet.
		{name: "TCP open, resets soon", want: verdicts{success}, probe: tcp, timing: true, servers: raw(steps(pause(0.2), resets))},
		{name: "TCP open, server speaks first", want: verdicts{success}, probe: tcp, servers: raw(speaksFirst)},
		{name: "TCP open, what the server reads", want: verdicts{success}, probe: tcp, servers: raw(notesWhatComes)},
		{name: "TCP late, after the probe", want: verdicts{failure}, probe: tcp, servers: app(server{late: time.Hour, answer: ok})},
		{name: "TCP open, never accepted", want: verdicts{success}, probe: tcp, servers: app(neverAccepts)},
		{name: "TCP backlog full", want: verdicts{failure}, probe: tcp, timeout: 1, servers: app(full)},
	}
}

// listenDeaf makes a listener that accepts nothing.
func listenDeaf(address string) (net.Listener, error) {
	l, err := listenSoon(address)
	return &fullListener{Listener: l, ended: make(chan struct{})}, err
}

// listenFull makes a listener that accepts nothing, with a queue that is full.
func listenFull(address string) (net.Listener, error) {
	l, err := listenSoon(address)
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
			return full, nil //nolint:nilerr // no more fit in, which is what was wanted
		}
		full.conns = append(full.conns, conn)
	}
	return nil, fmt.Errorf("fill the backlog of %s: it takes more", address)
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
			_ = conn.Close() // it was never accepted
		}
	}
	return l.Listener.Close()
}

// portsAndHosts is a probe of a named port, of another host, and of what cannot be found.
func portsAndHosts() []testCase {
	var all []testCase
	for _, r := range []struct {
		name      string
		want      kubelet.Verdict
		unchanged bool
		port      string
	}{
		{"by name", success, false, "web"},
		{"by the name of a closed one", failure, false, "shut"},
		{"by an unknown name", errored, true, "nosuch"},
		{"by another container's name", errored, true, "theirs"},
		{"by a number in quotes", success, true, "PORT"},
	} {
		overHTTP := func(p podAddress) corev1.ProbeHandler {
			h := get("/probe")(p)
			h.HTTPGet.Port = intstr.FromString(p.fill(r.port))
			return h
		}
		overTCP := func(p podAddress) corev1.ProbeHandler { return tcpSocket(intstr.FromString(p.fill(r.port))) }
		for number, probe := range []probeHandler{overHTTP, overTCP} {
			all = append(all, testCase{
				name: "port " + []string{"HTTP ", "TCP "}[number] + r.name, want: verdicts{r.want}, unchanged: r.unchanged,
				containers: withNamedPorts(testCase{probe: probe, number: number}),
			})
		}
	}
	for _, r := range []struct {
		name      string
		host      string
		want, tcp kubelet.Verdict // tcp is that of a TCP probe, if there is one
	}{
		{"of the pod", "IP", success, success},
		{"of another address", "127.0.0.253", failure, failure},
		{"of an unknown name", "nosuch.invalid", failure, failure},
		{"that is none", "a b", errored, ""},
	} {
		overHTTP := func(p podAddress) corev1.ProbeHandler {
			h := get("/probe")(p)
			h.HTTPGet.Host = p.fill(r.host)
			return h
		}
		overTCP := func(p podAddress) corev1.ProbeHandler {
			return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Host: p.fill(r.host), Port: port(p.app)}}
		}
		all = append(all, testCase{name: "host " + r.name + ", HTTP", want: verdicts{r.want}, unchanged: true, timeout: 5, probe: overHTTP})
		if r.tcp != "" {
			all = append(all, testCase{name: "host " + r.name + ", TCP", want: verdicts{r.tcp}, unchanged: true, timeout: 5, probe: overTCP})
		}
	}
	return all
}

// withNamedPorts are the container of a case, with named ports, and another one with some of the same names.
func withNamedPorts(c testCase) func(podAddress) []corev1.Container {
	return func(p podAddress) []corev1.Container {
		app := c.one(p)
		app.Ports = []corev1.ContainerPort{
			{Name: "metrics", ContainerPort: int32(p.more[0])}, {Name: "web", ContainerPort: int32(p.app)}, {Name: "shut", ContainerPort: int32(p.closed)},
		}
		other := corev1.Container{Name: "other", Ports: []corev1.ContainerPort{{Name: "theirs", ContainerPort: int32(p.app)}, {Name: "web", ContainerPort: int32(p.closed)}}}
		return []corev1.Container{other, app}
	}
}

// addresses are pods whose address differs in kind from that of the others.
func addresses() []testCase {
	redirected := func(location string) servers { return http1(inTurn(redirect(location), reply(200, ""))) }
	query := get("/probe?a=b")
	var all []testCase
	for _, ip := range []string{"::1", "127.0.0.1"} {
		for _, c := range []testCase{
			{name: "HTTP", want: verdicts{success}, probe: query},
			{name: "HTTP with a Host", want: verdicts{success}, probe: get("/", header("host", "x"))},
			{name: "HTTPS", want: verdicts{success}, probe: getTLS("/"), servers: https(ok)},
			{name: "TCP open", want: verdicts{success}, probe: tcp},
			{name: "TCP refused", want: verdicts{failure}, probe: tcpClosed},
			{name: "gRPC", want: verdicts{success}, probe: grpcHealth("a"), servers: http2c(health(1))},
			{name: "redirect to itself", want: verdicts{success}, probe: query, servers: redirected("http://IP:PORT/new")},
			{name: "redirect to the virtual port", want: verdicts{failure}, probe: query, servers: redirected("http://IP:VIRTUAL/new")},
			{name: "redirect to localhost", want: verdicts{warning}, probe: query, servers: redirected("http://localhost:PORT/")},
			{name: "redirect to ::1 in full", at: "::1", want: verdicts{warning}, probe: query, servers: redirected("http://[0:0:0:0:0:0:0:1]:PORT/")},
			{name: "redirect to ::1 with a zone", at: "::1", want: verdicts{warning}, probe: query, servers: redirected("http://[::1%25lo]:PORT/")},
		} {
			if c.at = cmp.Or(c.at, ip); c.at == ip {
				c.name = "at " + ip + " " + c.name
				all = append(all, c)
			}
		}
	}
	return all
}

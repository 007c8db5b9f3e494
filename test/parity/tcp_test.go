package parity

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// tcp is an application that does what the first line of a connection says.
var tcp = &application{name: "tcp", protocol: "tcp", serve: func(l net.Listener, see func(string)) {
	accept(l, func(c net.Conn) {
		r := bufio.NewReader(c)
		line, err := r.ReadString('\n')
		if err != nil {
			see(inWords(err))
			return
		}
		if do := tcpBehaviours[strings.TrimSpace(line)]; do != nil {
			do(c.(*net.TCPConn), r, see)
		}
	})
}}

const large = 16 << 20

var tcpBehaviours = map[string]func(*net.TCPConn, *bufio.Reader, func(string)){
	"echo": func(c *net.TCPConn, r *bufio.Reader, _ func(string)) { _, _ = io.Copy(c, r) },
	"count": func(c *net.TCPConn, r *bufio.Reader, _ func(string)) { // answers after the client has closed its half
		n, err := io.Copy(io.Discard, r)
		_, _ = fmt.Fprintf(c, "%d %v", n, err)
	},
	"end half": func(c *net.TCPConn, r *bufio.Reader, see func(string)) { // closes its half first
		_, _ = io.WriteString(c, "bye")
		_ = c.CloseWrite()
		rest, err := io.ReadAll(r)
		see(fmt.Sprintf("%q %v", rest, err))
	},
	"reset": func(c *net.TCPConn, _ *bufio.Reader, _ func(string)) { _ = c.SetLinger(0) },
	"close": func(*net.TCPConn, *bufio.Reader, func(string)) {},
	// Unread data makes the kernel reset the connection.
	"close unread": func(_ *net.TCPConn, r *bufio.Reader, _ func(string)) {
		_, _ = r.ReadByte()
	},
	"send and reset": func(c *net.TCPConn, r *bufio.Reader, _ func(string)) {
		_, _ = io.WriteString(c, "some")
		_, _ = r.ReadByte() // the client has received the answer
		_ = c.SetLinger(0)
	},
	"see the end": func(c *net.TCPConn, r *bufio.Reader, see func(string)) {
		_, _ = io.WriteString(c, "!")
		_, err := io.Copy(io.Discard, r)
		if err == nil {
			err = io.EOF
		}
		see(inWords(err))
	},
	"send": func(c *net.TCPConn, _ *bufio.Reader, _ func(string)) {
		_, _ = io.CopyN(c, zeros{}, large)
	},
	"idle": func(c *net.TCPConn, _ *bufio.Reader, _ func(string)) {
		time.Sleep(idle)
		_, _ = io.WriteString(c, "awake")
	},
}

// idle is longer than any of Sonde's timeouts for a connection, except the timeout of TCP itself.
const idle = 20 * time.Second

// zeros is endless.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// banner is an application that sends first.
var banner = &application{name: "banner", protocol: "tcp", serve: func(l net.Listener, _ func(string)) {
	accept(l, func(c net.Conn) {
		_, _ = io.WriteString(c, "220 welcome\n")
		line, _ := bufio.NewReader(c).ReadString('\n')
		_, _ = io.WriteString(c, "250 "+line)
	})
}}

// Applications that do not listen, and services that no endpoint has.
var (
	tcpDown  = &application{name: "tcp-down", protocol: "tcp"}
	httpDown = &application{name: "http-down", protocol: "http"}
	tcpNone  = &application{name: "tcp-none", protocol: "tcp", absent: true}
)

// says returns a client that sends a text and then calls do.
func says(text string, do func(*net.TCPConn) string) func(context.Context, string) string {
	return onConnection(func(c net.Conn) string {
		if _, err := io.WriteString(c, text); err != nil {
			return inWords(err)
		}
		return do(c.(*net.TCPConn))
	})
}

// reads reads everything that arrives, and reports how it ends.
func reads(c *net.TCPConn) string {
	text, err := io.ReadAll(c)
	if err == nil {
		err = io.EOF
	}
	return fmt.Sprintf("%q, %s", shortened(string(text)), inWords(err))
}

// readsAfterHalf closes its half before it reads.
func readsAfterHalf(c *net.TCPConn) string {
	if err := c.CloseWrite(); err != nil {
		return inWords(err)
	}
	return reads(c)
}

func tcpCalls() []*call {
	const group, down = "TCP", "Applications that do not listen"
	const connected = `connected, "", `
	reads := func(c *net.TCPConn) string { return "connected, " + reads(c) }
	downCalls := []*call{
		{group: down, name: "TCP, the application does not listen", app: tcpDown, client: says("", reads), want: "connect: refused",
			differs: []difference{{ways: throughIt, want: connected + "closed", why: accepts}}},
		{group: down, name: "TCP, the service has no endpoint", app: tcpNone, client: says("", reads), want: "connect: refused",
			differs: []difference{{ways: throughIt, want: connected + "closed", why: accepts}}},
		{group: down, name: "HTTP, the application does not listen", app: httpDown, client: get("/"), want: "connect: refused",
			differs: []difference{{ways: throughIt, want: "503 by Envoy", why: accepts}}},
	}
	return append(downCalls, tcpConnectedCalls(group)...)
}

func tcpConnectedCalls(group string) []*call {
	atOnce := []difference{{ways: []way{plain}, want: `"", reset`, why: earlyEnd, sometimes: true}}
	return []*call{
		{group: group, name: "the client half-closes at once", app: tcp, client: says("echo\nhello", readsAfterHalf), want: `"hello", closed`, differs: atOnce},
		{group: group, name: "the client half-closes after the answer", app: tcp, want: `"there", closed`, client: says("echo\nhello", func(c *net.TCPConn) string {
			_, _ = io.ReadFull(c, make([]byte, 5))
			_, _ = io.WriteString(c, "there")
			return readsAfterHalf(c)
		})},
		{group: group, name: "the server answers after the client has half-closed", app: tcp, client: says("count\n12345", readsAfterHalf), want: `"5 <nil>", closed`, differs: atOnce},
		{group: group, name: "the server half-closes first", app: tcp, sees: 1, want: `"bye", closed; the application: "more" <nil>`,
			client: says("end half\n", func(c *net.TCPConn) string {
				text := reads(c)
				_, _ = io.WriteString(c, "more")
				_ = c.CloseWrite()
				return text
			})},
		{group: group, name: "the server resets", app: tcp, client: says("reset\n", reads), want: `"", reset`,
			differs: []difference{{ways: inMesh, want: `"", closed`, why: oldResets, before: 39}}},
		{group: group, name: "the server closes", app: tcp, client: says("close\n", reads), want: `"", closed`},
		{group: group, name: "the server sends, then resets", app: tcp, want: `some, then "", reset`,
			differs: []difference{{ways: inMesh, want: `some, then "", closed`, why: oldResets, before: 39}},
			client: says("send and reset\n", func(c *net.TCPConn) string {
				some := make([]byte, 4)
				_, _ = io.ReadFull(c, some)
				_, _ = c.Write([]byte{0})
				return string(some) + ", then " + reads(c)
			})},
		{group: group, name: "the client resets", app: tcp, sees: 1, want: "sent; the application: reset",
			differs: []difference{{ways: throughIt, want: "sent; the application: closed", why: oldResets, before: 40}}, client: says("see the end\n", func(c *net.TCPConn) string {
				_, _ = c.Read(make([]byte, 1)) // the connection is established
				_ = c.SetLinger(0)
				return "sent"
			})},
		{group: group, name: "the client closes", app: tcp, sees: 1, want: "sent; the application: closed", client: says("see the end\n", func(c *net.TCPConn) string {
			_, _ = c.Read(make([]byte, 1))
			return "sent"
		})},
		{group: group, name: "16 MiB to the client", app: tcp, client: says("send\n", reads), want: `"16777216 bytes", closed`},
		{group: group, name: "16 MiB to the server", app: tcp, want: `"16777216 <nil>", closed`, client: says("count\n", func(c *net.TCPConn) string {
			_, _ = io.CopyN(c, zeros{}, large)
			return readsAfterHalf(c)
		})},
		{group: group, name: "16 MiB both ways at once", app: tcp, want: `"16777216 bytes", closed`, client: says("echo\n", func(c *net.TCPConn) string {
			go func() {
				_, _ = io.CopyN(c, zeros{}, large)
				_ = c.CloseWrite()
			}()
			return reads(c)
		})},
		{group: group, name: "idle for 20 s", app: tcp, takes: idle, client: says("idle\n", reads), want: `"awake", closed`},
		{group: group, name: "the server speaks first", app: banner, want: "220 welcome, 250 hello", client: onConnection(func(c net.Conn) string {
			r := bufio.NewReader(c)
			first, err := r.ReadString('\n')
			if err != nil {
				return inWords(err)
			}
			_, _ = io.WriteString(c, "hello\n")
			second, _ := r.ReadString('\n')
			return strings.TrimSpace(first) + ", " + strings.TrimSpace(second)
		})},
		{group: group, name: "only the preface of HTTP/2, closed by the server", app: tcp, client: says("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", reads), want: `"", closed`},
	}
}

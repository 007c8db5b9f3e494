package parity

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
)

// upgrades accepts each upgrade and each CONNECT, and echoes. It reports the requests that it sees.
var upgrades = &application{name: "upgrades", protocol: "http", serve: http1Server(func(q *request, see func(string)) bool {
	see(q.String())
	switch offered := valueOf(q.fields, "Upgrade"); {
	case q.path() == "/refuse":
		_, _ = io.WriteString(q.conn, "HTTP/1.1 400 Bad Request\r\nContent-Length: 3\r\n\r\nno!")
		return true
	case strings.HasPrefix(q.line, "CONNECT "):
		_, _ = io.WriteString(q.conn, "HTTP/1.1 200 OK\r\n\r\n")
	case offered != "" && q.path() != "/ignore":
		_, _ = fmt.Fprintf(q.conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", offered)
	default:
		_, _ = io.WriteString(q.conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		return true
	}
	_, _ = io.Copy(q.conn, q.rest)
	return false
})}

// upgrade returns a client that requests an upgrade. After status 101 it sends a text, which must come back, and closes
// its half.
func upgrade(request string) func(context.Context, string) string {
	return onConnection(func(c net.Conn) string {
		if _, err := io.WriteString(c, request); err != nil {
			return inWords(err)
		}
		r := bufio.NewReader(c)
		status, _, err := readHead(r)
		if err != nil {
			return inWords(err)
		}
		text := strings.Fields(status)[1]
		if text != "101" && (text != "200" || !strings.HasPrefix(request, "CONNECT ")) {
			return text
		}
		for _, piece := range []string{"hello", "there"} {
			_, _ = io.WriteString(c, piece)
			back := make([]byte, len(piece))
			if _, err := io.ReadFull(r, back); err != nil {
				return text + " " + inWords(err)
			}
			text += " " + string(back)
		}
		_ = c.(*net.TCPConn).CloseWrite()
		_, err = io.ReadAll(r)
		if err == nil {
			err = io.EOF
		}
		return text + ", " + inWords(err)
	})
}

const webSocket = "GET /chat HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"

func upgradeCalls() []*call {
	const group = "Upgrades, methods and CONNECT"
	const echoed = "101 hello there, closed"
	offer := func(method, name string) func(context.Context, string) string {
		return upgrade(method + " /x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: " + name + "\r\n\r\n")
	}
	all := []*call{
		{group: group, name: "WebSocket", app: upgrades, client: upgrade(webSocket), want: echoed},
		{group: group, name: "WebSocket, Upgrade: WebSocket", app: upgrades, client: upgrade(strings.Replace(webSocket, "websocket", "WebSocket", 1)), want: echoed},
		{group: group, name: "WebSocket, refused by the application", app: upgrades, client: asks(strings.Replace(webSocket, "/chat", "/refuse", 1)), want: `400 "no!"`},
		{group: group, name: "SPDY/3.1, as kubectl exec", app: upgrades, client: offer("POST", "SPDY/3.1"), want: echoed},
		{group: group, name: "tcp, as docker attach", app: upgrades, client: offer("POST", "tcp"), want: echoed},
		{group: group, name: "TLS/1.2 offered, ignored by the application", app: upgrades, client: asks("GET /ignore HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: TLS/1.2\r\n\r\n"), want: `200 "ok"`},
		{group: group, name: "h2c offered, ignored by the application", app: upgrades, client: asks("GET /ignore HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"), want: `200 "ok"`},
		{group: group, name: "h2c, accepted by the application", app: upgrades, client: offer("POST", "h2c"), want: echoed, differs: refused("200", noH2C)},
		{group: group, name: "a custom protocol, accepted by the application", app: upgrades, client: offer("GET", "my-protocol"), want: echoed, differs: refused("403", noNewName)},
		{group: group, name: "a custom protocol, ignored by the application", app: upgrades, client: asks("GET /ignore HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: my-protocol\r\n\r\n"), want: `200 "ok"`, differs: refused(`403 ""`, noNewName)},
		{group: group, name: "CONNECT", app: upgrades, client: upgrade("CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n"), want: "200 hello there, closed"},
		{group: group, name: "a URL in the request line, as to a proxy", app: web, sees: 1, client: asks("GET http://example.com/a HTTP/1.1\r\nHost: example.com\r\n\r\n"),
			want:    `200 "ok"; the application: GET http://example.com/a HTTP/1.1 / Host: example.com`,
			differs: refused(`200 "ok"; the application: GET /a HTTP/1.1 / Host: example.com`, relative)},
		{group: group, name: "OPTIONS *", app: web, sees: 1, client: asks("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n"), want: `200 "ok"; the application: OPTIONS * HTTP/1.1 / Host: h`,
			differs: refused(`404 ""; the application: nothing`, noAsterisk)},
	}
	for _, method := range []string{"PROPFIND", "LIST", "PURGE", "MY-METHOD", "lower"} {
		all = append(all, &call{group: group, name: "method " + method, app: web, sees: 1, client: asks(method + " /a HTTP/1.1\r\nHost: h\r\n\r\n"),
			want:    `200 "ok"; the application: ` + method + ` /a HTTP/1.1 / Host: h`,
			differs: refused(`200 "ok"; the application: `+method+` /a HTTP/1.1 / Host: h / content-length: 0`, noLength)})
	}
	return all
}

package parity

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
)

// seen returns a call whose application sees a request as the client wrote it, or as the text sees.
func seen(name, request, sees string, differs ...difference) *call {
	return &call{group: "HTTP/1 requests of the client", name: name, app: web, sees: 1, client: asks(request), want: `200 "ok"; the application: ` + sees, differs: differs}
}

// pipelined sends two requests at once, and reads two answers.
var pipelined = onConnection(func(c net.Conn) string {
	if _, err := io.WriteString(c, "GET /1 HTTP/1.1\r\nHost: h\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
		return inWords(err)
	}
	r := bufio.NewReader(c)
	first, _ := readAnswer(r, false)
	second, _ := readAnswer(r, false)
	return first + ", " + second
})

// inTurn makes two requests on one connection, with a pause that is longer than Envoy keeps a connection to the
// application open.
func inTurn(pause func(context.Context)) func(context.Context, string) string {
	return func(ctx context.Context, at string) string {
		return onConnection(func(c net.Conn) string {
			var all []string
			r := bufio.NewReader(c)
			for range 2 {
				if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
					return inWords(err)
				}
				text, _ := readAnswer(r, false)
				all = append(all, text)
				pause(ctx)
			}
			return strings.Join(all, ", ")
		})(ctx, at)
	}
}

// continues waits for status 100 before it sends the body.
var continues = onConnection(func(c net.Conn) string {
	if _, err := io.WriteString(c, "POST /a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"); err != nil {
		return inWords(err)
	}
	r := bufio.NewReader(c)
	status, _, err := readHead(r)
	if err != nil {
		return inWords(err)
	}
	_, _ = io.WriteString(c, "hello")
	text, _ := readAnswer(r, false)
	return strings.Fields(status)[1] + ", then " + text
})

func requestCalls() []*call {
	const group = "HTTP/1 requests of the client"
	const host = " HTTP/1.1\r\nHost: h\r\n"
	get := func(path string) string { return "GET " + path + host + "\r\n" }
	withHeaders := func(n int) string {
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, "X-%d: 1\r\n", i)
		}
		return "GET /a" + host + text.String() + "\r\n"
	}
	return []*call{
		seen("case of headers", "GET /a"+host+"X-CaSe: 1\r\nx-lower: 2\r\n\r\n", "GET /a HTTP/1.1 / Host: h / X-CaSe: 1 / x-lower: 2"),
		seen("a header twice", "GET /a"+host+"X-A: 1\r\nX-B: 2\r\nX-A: 3\r\n\r\n", "GET /a HTTP/1.1 / Host: h / X-A: 1 / X-B: 2 / X-A: 3"),
		seen("an empty header", "GET /a"+host+"X-A:\r\nX-B: 1\r\n\r\n", "GET /a HTTP/1.1 / Host: h / X-A: / X-B: 1"),
		seen("a header with an underscore", "GET /a"+host+"X_A: 1\r\n\r\n", "GET /a HTTP/1.1 / Host: h / X_A: 1"),
		seen("a header of Latin-1", "GET /a"+host+"X-A: \xe4\r\n\r\n", "GET /a HTTP/1.1 / Host: h / X-A: \xe4"),
		seen("a header of 60 kB", "GET /a"+host+"X-A: "+strings.Repeat("a", 60_000)+"\r\n\r\n", "60033 bytes"),
		seen("90 headers", withHeaders(90), "915 bytes"),
		{group: group, name: "300 headers", app: web, client: asks(withHeaders(300)), want: `200 "ok"`, differs: refused(`431 "Request Header Fields Too Large"`, manyHeaders)},
		seen("dots and slashes in a path", get("//a/./b/../c//"), "GET //a/./b/../c// HTTP/1.1 / Host: h"),
		seen("escapes in a path", get("/%2F%41%zz?q=%00&;"), "GET /%2F%41%zz?q=%00&; HTTP/1.1 / Host: h"),
		seen("brackets and bars in a path", get("/a|b[c]{d}^`\\"), "GET /a|b[c]{d}^`\\ HTTP/1.1 / Host: h"),
		seen("a path of 8 kB", get("/"+strings.Repeat("p", 8000)), "8024 bytes"),
		seen("a path that ends with a question mark", get("/a?"), "GET /a? HTTP/1.1 / Host: h"),
		{group: group, name: "UTF-8 in a path", app: web, client: asks(get("/\u00e4")), want: `200 "ok"`, differs: refused(`400 "Bad Request"`, noPath)},
		{group: group, name: "a # in a path", app: web, client: asks(get("/a#b")), want: `200 "ok"`, differs: refused(`400 ""`, noPath)},
		seen("Host with a port", "GET /a HTTP/1.1\r\nHost: example.com:8080\r\n\r\n", "GET /a HTTP/1.1 / Host: example.com:8080"),
		seen("Host in upper case", "GET /a HTTP/1.1\r\nHost: EXAMPLE.com\r\n\r\n", "GET /a HTTP/1.1 / Host: EXAMPLE.com"),
		seen("an empty Host", "GET /a HTTP/1.1\r\nHost:\r\nX-A: 1\r\n\r\n", "GET /a HTTP/1.1 / Host: / X-A: 1"),
		seen("HTTP/1.0", "GET /a HTTP/1.0\r\nHost: h\r\n\r\n", "GET /a HTTP/1.0 / Host: h",
			refused(`200 "ok"; the application: GET /a HTTP/1.1 / Host: h`, hopByHop)...),
		seen("GET with a body", "GET /a"+host+"Content-Length: 3\r\n\r\nabc", `GET /a HTTP/1.1 / Host: h / Content-Length: 3 / body "abc"`),
		seen("an empty body", "POST /a"+host+"Content-Length: 0\r\n\r\n", "POST /a HTTP/1.1 / Host: h / Content-Length: 0"),
		seen("a chunked body", "POST /a"+host+"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", `POST /a HTTP/1.1 / Host: h / Transfer-Encoding: chunked / body "abcde"`),
		seen("DELETE without a body", "DELETE /a"+host+"\r\n", "DELETE /a HTTP/1.1 / Host: h"),
		seen("Connection: close", "GET /a"+host+"Connection: close\r\n\r\n", "GET /a HTTP/1.1 / Host: h / Connection: close",
			refused(`200 "ok"; the application: GET /a HTTP/1.1 / Host: h`, hopByHop)...),
		seen("x-envoy-*, which Envoy obeys", "GET /a"+host+"x-envoy-upstream-rq-timeout-ms: 1\r\n\r\n", "GET /a HTTP/1.1 / Host: h / x-envoy-upstream-rq-timeout-ms: 1",
			refused(`200 "ok"; the application: GET /a HTTP/1.1 / Host: h`, ours)...),
		{group: group, name: "Transfer-Encoding and Content-Length", app: web, want: `200 "ok"`, differs: refused(`400 "Bad Request"`, bothLengths),
			client: asks("POST /a" + host + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n")},
		{group: group, name: "HTTP/1.0 without Host", app: web, client: asks("GET /a HTTP/1.0\r\n\r\n"), want: `200 "ok"`},
		{group: group, name: "HTTP/1.1 without Host", app: web, client: asks("GET /a HTTP/1.1\r\n\r\n"), want: `200 "ok"`, differs: refused(`400 ""`, noHostName)},
		{group: group, name: "HEAD", app: web, client: asks("HEAD /a"+host+"\r\n", "Content-Length"), want: "200, Content-Length: 2"},
		{group: group, name: "two pipelined requests", app: web, client: pipelined, want: `200 "ok", 200 "ok"`},
		{group: group, name: "two requests in turn", app: web, client: inTurn(func(context.Context) {}), want: `200 "ok", 200 "ok"`},
		{group: group, name: "Expect: 100-continue", app: web, client: continues, want: `100, then 200 "ok"`},
	}
}

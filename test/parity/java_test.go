package parity

import (
	"io"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/http2"
	upgrade2 "golang.org/x/net/http2/h2c" //nolint:staticcheck // Go's own server does not support upgrades to h2c
	"golang.org/x/net/websocket"
)

// upgradesToHTTP2 accepts an upgrade to h2c, as Java servers do, and WebSockets.
var upgradesToHTTP2 = &application{name: "upgrades-to-http2", protocol: "http", serve: func(l net.Listener, _ func(string)) {
	mux := http.NewServeMux()
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // otherwise Go drops unread data when the answer begins
		_, _ = w.Write(body)
	})
	// The connection ends without a closing frame, which clients report as 1006.
	mux.Handle("/chat", websocket.Handler(func(c *websocket.Conn) { _, _ = io.Copy(c, c) }))
	s := &http.Server{Handler: upgrade2.NewHandler(mux, &http2.Server{}), ReadHeaderTimeout: longPatience} //nolint:staticcheck // like above
	_ = s.Serve(l)
	_ = s.Close()
}}

// startsJava is how long a Java virtual machine may take to compile and run the client.
const startsJava = 20 * time.Second

// javaCalls use java.net.http, which offers h2c with the first request to a server unless this is switched off.
func javaCalls() []*call {
	client := func(what string) *call {
		return &call{group: otherClients, name: "Java, " + what, app: upgradesToHTTP2, program: java, takes: startsJava, client: runs(java, "testdata/Client.java", what, "URL")}
	}
	with := func(c *call, want string, differs ...difference) *call {
		c.want, c.differs = want, differs
		return c
	}
	http1 := func(want string) difference { return difference{ways: throughIt, want: want, why: noH2C} }
	return []*call{
		with(client("GET, HTTP/1.1"), "HTTP_1_1 200 0"),
		with(client("GET, h2c offered"), "HTTP_2 200 0", http1("HTTP_1_1 200 0")),
		with(client("two GETs, h2c offered"), "HTTP_2 200 0, HTTP_2 200 0", http1("HTTP_1_1 200 0, HTTP_1_1 200 0")),
		with(client("POST of 300 kB, h2c offered"), "HTTP_2 200 300000", http1("HTTP_1_1 200 300000")),
		with(client("POST with 100-continue"), "HTTP_1_1 200 5"),
		with(client("chunked POST by java.net"), "200 300000"),
		with(client("WebSocket"), "hello there, closed 1006"),
	}
}

package parity

import (
	"io"
	"strings"
)

// odd is an application whose answers HTTP clients accept, but Envoy may not.
var odd = &application{name: "odd", protocol: "http", serve: http1Server(func(q *request, _ func(string)) bool {
	answer, ok := oddAnswers[q.path()]
	if !ok {
		answer = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
	}
	_, _ = io.WriteString(q.conn, answer)
	return false
})}

const chunkedHello = "5\r\nhello\r\n0\r\n\r\n"

var oddAnswers = map[string]string{
	"/te2":        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + chunkedHello,
	"/gzip":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n" + chunkedHello,
	"/te+cl":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + chunkedHello,
	"/identity":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello",
	"/cl2":        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
	"/cl204":      "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n",
	"/cl204-0":    "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
	"/te204":      "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"/cl304":      "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
	"/lf":         "HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
	"/fold":       "HTTP/1.1 200 OK\r\nX-Long: a\r\n b\r\nContent-Length: 5\r\n\r\nhello",
	"/underscore": "HTTP/1.1 200 OK\r\nX_Y: 1\r\nContent-Length: 5\r\n\r\nhello",
	"/999":        "HTTP/1.1 999 Strange\r\nContent-Length: 5\r\n\r\nhello",
	"/nodate":     "HTTP/1.1 200 OK\r\nServer: app\r\nContent-Length: 5\r\n\r\nhello",
	"/spacehdr":   "HTTP/1.1 200 OK\r\nX-Space : 1\r\nContent-Length: 5\r\n\r\nhello",
	"/emptyhdr":   "HTTP/1.1 200 OK\r\n: 1\r\nContent-Length: 5\r\n\r\nhello",
	"/http09":     "hello without any header",
	"/upg":        "HTTP/1.1 200 OK\r\nConnection: Upgrade\r\nUpgrade: h2,h2c\r\nTransfer-Encoding: chunked\r\n\r\n" + chunkedHello,
	"/upgcl":      "HTTP/1.1 200 OK\r\nConnection: Upgrade, Keep-Alive\r\nUpgrade: h2\r\nContent-Length: 5\r\n\r\nhello",
	"/trailer":    "HTTP/1.1 200 OK\r\nTrailer: X-T\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
	"/nullhdr":    "HTTP/1.1 200 OK\r\nX-N: a\x00b\r\nContent-Length: 5\r\n\r\nhello",
	"/ctlhdr":     "HTTP/1.1 200 OK\r\nX-N: a\x1bb\r\nContent-Length: 5\r\n\r\nhello",
	"/latin1":     "HTTP/1.1 200 OK\r\nX-N: \xe4\r\nContent-Length: 5\r\n\r\nhello",
	"/eof":        "HTTP/1.1 200 OK\r\n\r\nhello",
	"/hdrat":      "HTTP/1.1 200 OK\r\nX@Y: 1\r\nContent-Length: 5\r\n\r\nhello",
	"/head405":    "HTTP/1.1 405 Nope\r\nAllow: GET\r\n\r\n",
	"/reason":     "HTTP/1.1 200 Everything is fine \xe4\r\nContent-Length: 5\r\n\r\nhello",
	"/noreason":   "HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello",
	"/large":      "HTTP/1.1 200 OK\r\nSet-Cookie: " + strings.Repeat("a", 300_000) + "\r\nContent-Length: 5\r\n\r\nhello",
	"/cookie":     "HTTP/1.1 200 OK\r\nSet-Cookie: " + strings.Repeat("a", 100_000) + "\r\nContent-Length: 5\r\n\r\nhello",
	"/1200hdrs":   "HTTP/1.1 200 OK\r\n" + strings.Repeat("X-1: 1\r\n", 1200) + "Content-Length: 5\r\n\r\nhello",
	"/clplus":     "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
	"/http10":     "HTTP/1.0 200 OK\r\n\r\nhello",
	"/cut":        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
	"/cutchunk":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
	"/100":        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
	"/103":        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
	"/nothing":    "",
}

// web is an application that reports exactly what it receives.
var web = &application{name: "web", protocol: "http", serve: http1Server(func(q *request, see func(string)) bool {
	see(q.String())
	_, _ = io.WriteString(q.conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	return true
})}

func http1Calls() []*call {
	const answers = "HTTP/1 responses of the application"
	hello := `200 "hello"`
	return []*call{
		{group: answers, name: "Transfer-Encoding twice", app: odd, client: get("/te2"), want: hello, differs: refused("502 by Envoy", notParsed)},
		{group: answers, name: "Transfer-Encoding: gzip, chunked", app: odd, client: get("/gzip"), want: hello, differs: refused("502 by Envoy", notParsed)},
		{group: answers, name: "Transfer-Encoding and Content-Length", app: odd, client: get("/te+cl"), want: hello},
		{group: answers, name: "Transfer-Encoding: identity", app: odd, client: get("/identity"), want: hello, differs: refused("502 by Envoy", notParsed)},
		{group: answers, name: "Content-Length twice", app: odd, client: get("/cl2"), want: hello, differs: refused("502 by Envoy", notParsed)},
		{group: answers, name: "204 with Content-Length: 5", app: odd, client: get("/cl204"), want: "204", differs: refused("502 by Envoy", notParsed)},
		{group: answers, name: "204 with Content-Length: 0", app: odd, client: get("/cl204-0"), want: "204"},
		{group: answers, name: "204 with Transfer-Encoding", app: odd, client: get("/te204"), want: "204", differs: refused("502 by Envoy", notParsed)},
		{group: answers, name: "304 with Content-Length: 5", app: odd, client: get("/cl304"), want: "304"},
		{group: answers, name: "lines that end with only a line feed", app: odd, client: get("/lf"), want: hello},
		{group: answers, name: "a header in two lines", app: odd, client: get("/fold", "X-Long"), want: `200, X-Long: a b "hello"`},
		{group: answers, name: "a header with an underscore", app: odd, client: get("/underscore", "X_Y"), want: `200, X_Y: 1 "hello"`},
		{group: answers, name: "status 999", app: odd, client: get("/999"), want: `999 "hello"`},
		{group: answers, name: "Server, no Date", app: odd, client: get("/nodate", "Server"), want: `200, Server: app "hello"`},
		{group: answers, name: "a space before the colon of a header", app: odd, client: get("/spacehdr", "X-Space"), want: `200, X-Space : 1 "hello"`, differs: refused("502 by Envoy", notParsed)},
		{group: answers, name: "a header without a name", app: odd, client: get("/emptyhdr"), want: hello, differs: refused("502 by Envoy", notParsed)},
		{group: answers, name: "HTTP/0.9, without any header", app: odd, client: get("/http09"), want: "no HTTP: hello without any header", differs: refused("502 by Envoy", noHTTP09)},
		{group: answers, name: "Upgrade: h2,h2c offered, chunked", app: odd, client: get("/upg"), want: hello},
		{group: answers, name: "Upgrade: h2 offered", app: odd, client: get("/upgcl"), want: hello},
		{group: answers, name: "trailers", app: odd, client: get("/trailer"), want: hello + ", trailers X-T: 1", differs: refused(hello+", trailers x-t: 1", noTrailer)},
		{group: answers, name: "a NUL byte in a header", app: odd, client: get("/nullhdr"), want: hello, differs: refused("502 by Envoy", notParsed)},
		{group: answers, name: "an ESC byte in a header", app: odd, client: get("/ctlhdr"), want: hello, differs: refused("502 by Envoy", notParsed)},
		{group: answers, name: "a byte of Latin-1 in a header", app: odd, client: get("/latin1", "X-N"), want: "200, X-N: \xe4 \"hello\""},
		{group: answers, name: "a body that ends with the connection", app: odd, client: get("/eof"), want: hello},
		{group: answers, name: "a header named X@Y", app: odd, client: get("/hdrat"), want: hello, differs: refused("502 by Envoy", notParsed)},
		{group: answers, name: "405 to HEAD, no length", app: odd, client: asks("HEAD /head405 HTTP/1.1\r\nHost: h\r\n\r\n", "Allow"), want: "405, Allow: GET"},
		{group: answers, name: "a reason phrase in Latin-1", app: odd, client: get("/reason"), want: hello},
		{group: answers, name: "no reason phrase", app: odd, client: get("/noreason"), want: hello},
		{group: answers, name: "a cookie of 100 kB", app: odd, client: get("/cookie"), want: hello},
		{group: answers, name: "a cookie of 300 kB", app: odd, client: get("/large"), want: hello, differs: refused("502 by Envoy", tooLarge)},
		{group: answers, name: "1,200 headers", app: odd, client: get("/1200hdrs"), want: hello},
		{group: answers, name: "Content-Length: +5", app: odd, client: get("/clplus"), want: hello, differs: refused("502 by Envoy", notParsed)},
		{group: answers, name: "HTTP/1.0", app: odd, client: get("/http10"), want: hello},
		{group: answers, name: "a truncated body", app: odd, client: get("/cut"), want: hello + ", closed"},
		{group: answers, name: "truncated chunks", app: odd, client: get("/cutchunk"), want: hello + ", closed"},
		{group: answers, name: "an unrequested 100 Continue", app: odd, client: get("/100"), want: "100, " + hello},
		{group: answers, name: "103 Early Hints", app: odd, client: get("/103"), want: "103, " + hello},
		{group: answers, name: "the connection ends without an answer", app: odd, client: get("/nothing"), want: "closed", differs: refused("503 by Envoy", noClose)},
	}
}

package cases

import (
	"crypto/tls"
	"time"
)

// servers returns the servers of an application.
type servers func(PodAddress) []server

// app is an application with one server, on the port that most probes ask.
func app(s server) servers {
	return func(p PodAddress) []server {
		own := s // several cases may share s, and run at once
		own.port = p.App
		return []server{own}
	}
}

// http1 answers HTTP/1 requests, https HTTP/1 requests over TLS, http2s HTTP/2 requests over TLS, and http2c HTTP/2
// requests without TLS, as gRPC does. raw handles each connection itself.
func http1(answer func(*exchange)) servers { return app(server{answer: answer}) }
func https(answer func(*exchange)) servers { return app(server{tls: serverTLS(), answer: answer}) }
func http2s(answer func(*exchange2)) servers {
	return app(server{tls: serverTLS("h2"), answer2: answer})
}
func http2c(answer func(*exchange2)) servers { return app(server{answer2: answer}) }
func raw(do func(*exchange)) servers         { return app(server{connection: do}) }

// nothing listens at no port.
func nothing(PodAddress) []server { return nil }

// serverTLS is a server's TLS configuration, which accepts these protocols.
func serverTLS(protocols ...string) *tls.Config {
	return &tls.Config{Certificates: certificates().valid, NextProtos: protocols}
}

// What an HTTP/1 server does with a request or a connection. See the methods of exchange.

func closes(x *exchange) { x.close() }
func resets(x *exchange) { x.reset() }
func hangs(x *exchange)  { x.hang() }
func drains(x *exchange) { x.drain() }

// ok answers 200.
func ok(x *exchange) { x.reply(200, "ok") }

// reply sends a whole answer.
func reply(code int, body string, headers ...string) func(*exchange) {
	return func(x *exchange) { x.reply(code, body, headers...) }
}

// redirect answers 302. The placeholders of podAddress.fill in location are replaced.
func redirect(location string) func(*exchange) {
	return func(x *exchange) { x.reply(302, "", "Location: "+x.addr.fill(location)) }
}

// send sends a text unchanged. says sends it and ends the connection.
func send(text string) func(*exchange) { return func(x *exchange) { x.raw(text) } }
func says(text string) func(*exchange) { return steps(send(text), closes) }

// pause waits for a time, or until the case ends.
func pause(s float64) func(*exchange) { return func(x *exchange) { x.wait(seconds(s)) } }

// steps does one thing after the other.
func steps(all ...func(*exchange)) func(*exchange) {
	return func(x *exchange) {
		for _, do := range all {
			do(x)
		}
	}
}

// inTurn answers each request to the application by the next of its answers, and repeats the last one.
func inTurn(answers ...func(*exchange)) func(*exchange) {
	return func(x *exchange) { answers[min(x.n, len(answers))-1](x) }
}

// byTarget selects the answer by the path and query of the request. The answer for "" is the default.
func byTarget(answers map[string]func(*exchange)) func(*exchange) {
	return func(x *exchange) {
		if answer := answers[x.target]; answer != nil {
			answer(x)
			return
		}
		answers[""](x)
	}
}

// forEver sends a text repeatedly, until sending fails.
func forEver(text string, every time.Duration) func(*exchange) {
	return func(x *exchange) {
		for x.wait(every) {
			if _, err := x.conn.Write([]byte(text)); err != nil {
				return
			}
		}
	}
}

// What an HTTP/2 server does with a request.

// reply2 sends a whole answer. fields sends an answer that has only headers.
func reply2(code int, body string, pairs ...string) func(*exchange2) {
	return func(y *exchange2) { y.reply2(code, body, pairs...) }
}

func fields(pairs ...string) func(*exchange2) {
	return func(y *exchange2) { y.headers(true, pairs...) }
}

// headers2 begins an answer, data sends a part of its body, and end sends the trailers.
func headers2(pairs ...string) func(*exchange2) {
	return func(y *exchange2) { y.headers(false, pairs...) }
}
func data(body string) func(*exchange2)     { return func(y *exchange2) { y.data(false, []byte(body)) } }
func lastData(body string) func(*exchange2) { return func(y *exchange2) { y.data(true, []byte(body)) } }
func end(pairs ...string) func(*exchange2)  { return fields(pairs...) }
func closes2(y *exchange2)                  { y.close() }
func hangs2(y *exchange2)                   { y.hang() }

// steps2 and inTurn2 are steps and inTurn for HTTP/2.
func steps2(all ...func(*exchange2)) func(*exchange2) {
	return func(y *exchange2) {
		for _, do := range all {
			do(y)
		}
	}
}

func inTurn2(answers ...func(*exchange2)) func(*exchange2) {
	return func(y *exchange2) { answers[min(y.n, len(answers))-1](y) }
}

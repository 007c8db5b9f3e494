package cases

import (
	"strings"
	"time"
)

// timeouts has answers just before and just after the timeout.
func timeouts() []Case {
	const (
		head    = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
		long    = "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
		chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	)
	redirects := func(pauses float64) func(*exchange) {
		return steps(pause(pauses), inTurn(redirect("/1"), redirect("/2"), reply(200, "")))
	}
	slowHeaders := func(x *exchange) { x.slowly("HTTP/1.1 200 OK\r\nX: y\r\n\r\nok", 50*time.Millisecond) }
	large := header("Cookie", strings.Repeat("x", 100<<10))
	all := []Case{{
		Name: "request is larger than the buffer of a server that hangs", Want: Verdicts{Failure}, timeout: 1, Process: true,
		probe: get("/", large), servers: app(server{listen: listenSmall, connection: pause(2.5)}),
	}}
	for _, r := range []struct {
		name    string
		timeout int32
		want    Verdict
		answer  func(*exchange)
	}{
		{"answer at 1.4 s of 2", 2, Success, steps(pause(1.4), ok)},
		{"answer at 2.4 s of 2", 2, Failure, steps(pause(2.4), ok)},
		{"answer 500 at 2.4 s of 2", 2, Failure, steps(pause(2.4), reply(500, "ok"))},
		{"answer at 2.6 s of 3", 3, Success, steps(pause(2.6), ok)},
		{"timeout of 68 years", 2147483647, Success, ok},
		{"answer never", 1, Failure, hangs},
		{"answer's headers never end", 1, Failure, steps(send("HTTP/1.1 200 OK\r\n"), hangs)},
		{"interim answers for ever", 1, Failure, forEver("HTTP/1.1 103 Early\r\n\r\n", 100*time.Millisecond)},
		{"headers byte by byte for 1.5 s of 4", 4, Success, steps(slowHeaders, closes)},
		{"body at 1.4 s of 2", 2, Success, steps(send(head), pause(1.4), says("ok"))},
		{"body at 2.4 s of 2", 2, Errored, steps(send(head), pause(2.4), says("ok"))},
		{"body never", 1, Errored, steps(send(head), hangs)},
		{"body never, with 503", 1, Errored, steps(send("HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\n"), hangs)},
		{"chunks for ever, slowly", 1, Errored, steps(send(chunked), forEver("1\r\nx\r\n", 50*time.Millisecond))},
		{"10 KiB and then never the rest", 1, Success, steps(send(long+strings.Repeat("x", 20<<10)), hangs)},
		{"10 KiB exactly and then never the rest", 1, Success, steps(send(long+strings.Repeat("x", 10<<10)), hangs)},
		{"body without a length never ends", 1, Errored, steps(send("HTTP/1.1 200 OK\r\n\r\nok"), hangs)},
		{"trailer never", 1, Errored, steps(send(chunked+"2\r\nok\r\n0\r\n"), hangs)},
		{"two redirects of 1.2 s each, of 2", 2, Failure, redirects(1.2)},
		{"two redirects of 0.5 s each, of 3", 3, Success, redirects(0.5)},
		{"redirect whose body never ends", 1, Failure, steps(send("HTTP/1.1 302 Found\r\nLocation: /new\r\nContent-Length: 100\r\n\r\nshort"), hangs)},
	} {
		all = append(all, Case{Name: r.name, timeout: r.timeout, Want: Verdicts{r.want}, servers: http1(r.answer)})
	}
	return all
}

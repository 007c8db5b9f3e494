package cases

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// row is a case of an HTTP probe: its name, the kubelet's verdict, and what the application does with the request.
type row struct {
	name   string
	want   Verdict
	answer func(*exchange)
}

// byName sorts rows from a map, whose order is random.
func byName(a, b row) int { return cmp.Compare(a.name, b.name) }

// answers turns rows into cases.
func answers(prefix string, rows []row) []Case {
	var all []Case
	for _, r := range rows {
		all = append(all, Case{Name: prefix + r.name, Want: Verdicts{r.want}, servers: http1(r.answer)})
	}
	return all
}

// statuses has an answer of each class of statuses, and the statuses at the borders.
func statuses() []Case {
	var rows []row
	for want, codes := range map[Verdict][]int{
		Success: {200, 201, 202, 203, 204, 205, 206, 226, 299},
		Warning: {300, 301, 302, 303, 304, 305, 306, 307, 308, 399},
		Failure: {
			400, 401, 403, 404, 407, 418, 421, 425, 429, 499, 500, 501, 503, 505, 511, 599,
			600, 999, 199, 150,
		},
	} {
		for _, code := range codes {
			answer := reply(code, "a body")
			if code == 204 || code == 304 || code < 200 {
				answer = says(fmt.Sprintf("HTTP/1.1 %d Reason\r\n\r\n", code))
			}
			rows = append(rows, row{strconv.Itoa(code), want, answer})
		}
	}
	slices.SortFunc(rows, byName)
	line := func(text string) func(*exchange) { return says(text + "\r\nContent-Length: 0\r\n\r\n") }
	return append(answers("status ", rows), answers("status line ", []row{
		{"1000", Failure, line("HTTP/1.1 1000 Many")},
		{"099", Failure, line("HTTP/1.1 099 Few")},
		{"000", Failure, line("HTTP/1.1 000 None")},
		{"-200", Failure, line("HTTP/1.1 -200 Minus")},
		{"20", Failure, line("HTTP/1.1 20 Two digits")},
		{"2x0", Failure, line("HTTP/1.1 2x0 Letter")},
		{"without a reason", Success, line("HTTP/1.1 200")},
		{"with an odd reason", Success, line("HTTP/1.1 200 \x01\xff ok")},
		{"of HTTP/1.0", Success, line("HTTP/1.0 200 OK")},
		{"of HTTP/1.2", Success, line("HTTP/1.2 200 OK")},
		{"of HTTP/2.0", Success, line("HTTP/2.0 200 OK")},
		{"of HTTP/0.9", Success, line("HTTP/0.9 200 OK")},
		{"of http/1.1", Failure, line("http/1.1 200 OK")},
		{"of HTTP/1", Failure, line("HTTP/1 200 OK")},
		{"of ICY", Failure, line("ICY 200 OK")},
	})...)
}

// interims has 1xx answers before, instead of or without another answer.
func interims() []Case {
	const (
		final    = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
		early    = "HTTP/1.1 103 Early Hints\r\n"
		switched = "HTTP/1.1 101 Switching Protocols\r\n"
		upgrade  = "Connection: upgrade\r\nUpgrade: x\r\n\r\n"
	)
	return answers("interim ", []row{
		{"100 and 200", Success, says("HTTP/1.1 100 Continue\r\n\r\n" + final)},
		{"102 and 200", Success, says("HTTP/1.1 102 Processing\r\n\r\n" + final)},
		{"103 and 200", Success, says(early + "Link: </a>\r\n\r\n" + final)},
		{"five and 200", Success, says(strings.Repeat(early+"\r\n", 5) + final)},
		{"six and 200", Success, says(strings.Repeat(early+"\r\n", 6) + final)},
		{"100 times 103", Success, says(strings.Repeat(early+"\r\n", 100) + final)},
		{
			"20,000 times 103 with a header", Success,
			says(strings.Repeat(early+"Link: </aaaaaaaaaaaaaaaaaaaaaaaaaaaaa>\r\n\r\n", 20000) + final),
		},
		{"103 with a length and 200", Success, says(early + "Content-Length: 5\r\n\r\n" + final)},
		{"103 that is wrong and 200", Failure, says(early + "X y\r\n\r\n" + final)},
		{"103 alone", Failure, says(early + "\r\n")},
		{"103 and 503", Failure, says(early + "\r\nHTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")},
		{"100 alone", Failure, says("HTTP/1.1 100 Continue\r\n\r\n")},
		{"101 without a word of upgrade", Failure, says(switched + "\r\n")},
		{"101 with Upgrade", Failure, says(switched + upgrade)},
		{"101 with Upgrade and a body", Failure, says(switched + upgrade + strings.Repeat("x", 11<<10))},
	})
}

// paths has a probe of each unusual kind of path. The application must see the same request line as without a mesh. The
// kubelet itself cannot send the paths in failing.
func paths() []Case {
	failing := []string{"a:b", "mailto:x", "http:opaque"}
	var all []Case
	for _, path := range []string{
		// The table of kubernetes-facts §7, row by row.
		"a", "/a b", `/a"b`, `/a\b`, "/ä", "?x=1", "/a%2Fb", "/a%2fb", "/a%3Bb", "/a%23b", "/a%00b", "/a%2E%2E/b",
		"//healthz", "/a//b", "/a/../b", "/./a", "/..", "/a;b", "/a+b", "/a[1]", "/a'b", "//host/path",
		"http://other/abs?q", "/a|b^c`d{e}", "///x", "/a%zz", "/%", "*", "/a#frag", "/a?", "/a??x", "/a?x=1&y=%2F",
		"/a?q=a b", "/a?q=ä", "/a\nb", "/a?x\ny",
		// Dollar signs, which the kubelet expands in environment variables.
		"/$", "/$$", "/$(INSTANCE_IP)", "/$(POD_NAME)", "/$$(INSTANCE_IP)", "/a?b=$(INSTANCE_IP)&c=$$", "/$(", "/$)",
		"/$(NOSUCH)",
		`/\u0024`, `/"}],`, `/\`,
		// Other paths.
		"/", "", "/healthz/", "/a/", "/%20", "/a%20b?c%20d", "/A%41", "/%7E~", "/a%", "/a%2", "/%g0", "/a?%zz", "/a?%", "/?",
		"??", "?", "#", "/#", "/?#", "/a?b#c", "/a?b?c#d?e", "#a", "/a\tb", "/a?b\tc", "/a\rb", "/a\x7fb", "/a?b\x7f",
		"/a\x01", "/a?\x01", "/a\u00a0b", "/日本", "/a?日本", "/a%E6%97%A5", "/\U0001f600", "/a?\U0001f600", "/a<b>", "/a?<b>",
		"/a?\"'`{}|\\^[]", "/a?b c d  e", "/a? ", " /a", "/a ", " ", "a b", "a?b", "a/b", "./a", "../a", ".", "..", "a//b",
		"//", "//a", "//a:1/b", "//a:b/c", "//[::1]/x", "//[::1/x", "//a b/c", "//user@host/x", "//user:secret@host/x",
		"http://user:secret@host/x", "https://other/x", "ftp://other/x", "HTTP://other/x", "http://", "http:///x", "http:/x",
		"http:opaque", "mailto:x", "a:b", "/a:b", ":b", ":", "1:2", "://x", "/:80/x", "/a@b", "/a&b=c", "/a=b,c!d(e)*f",
		"/a;b=c?d;e", "/%2e", "/%2E%2e/", "/a/./b/../c", "/9000/x", "/tcp/80", "/grpc/80/x", "/18080/a", "/%2F%2Fa", "/%252F",
		"/a%25", "/*", "**", "/a?b=http://c/d", "/a?%2e%2e/", "/" + strings.Repeat("x", 60<<10),
		"/a?" + strings.Repeat("y", 60<<10), "/" + strings.Repeat("x", 8000), "/a?" + strings.Repeat("y%20z ", 1000),
		strings.Repeat("/..", 100),
	} {
		want := Success
		if slices.Contains(failing, path) {
			want = Failure
		}
		all = append(all, Case{Name: "path " + quoted(path), Want: Verdicts{want}, probe: get(path)})
	}
	return all
}

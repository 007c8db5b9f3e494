package parity

import (
	"context"
	"net/http"
	"os/exec"
	"strings"
)

// runs returns a client that runs a program and reports its output. URL in the arguments stands for the address.
func runs(program string, args ...string) func(context.Context, string) string {
	return func(ctx context.Context, at string) string {
		all := make([]string, 0, len(args))
		for _, a := range args {
			all = append(all, strings.ReplaceAll(a, "URL", "http://"+at))
		}
		out, err := exec.CommandContext(ctx, program, all...).CombinedOutput()
		if ctx.Err() != nil {
			return "waits for ever"
		}
		text := strings.TrimSpace(string(out))
		if err != nil {
			lines := strings.Split(text, "\n")
			return lines[len(lines)-1] + ", " + err.Error()
		}
		return text
	}
}

const (
	curl   = "curl"
	python = "python3"
	node   = "node"
	java   = "java"
)

const otherClients = "Other clients"

func programCalls() []*call {
	const group = otherClients
	const ask = `import urllib.request as u
r = u.urlopen("URL/echo", %s)
print(r.status, r.read().decode())`
	status := []string{"-sS", "-o", "/dev/null", "-w", "%{http_code} %{size_download}"}
	of := func(args ...string) []string { return append(append([]string{}, status...), args...) }
	nodeAsk := func(options, body string) string {
		return `const r = require("http").request("URL/echo", ` + options + `, a => { let n = 0; a.on("data", d => n += d.length); a.on("end", () => console.log(a.statusCode, n)) }); ` +
			`r.on("error", e => console.log(e.code)); r.end(` + body + `)`
	}
	const nodeH2 = `const c = require("http2").connect("URL"); const s = c.request({":path": "/echo", ":method": "POST"}); let n = 0; let code; ` +
		`s.on("response", h => code = h[":status"]); s.on("data", d => n += d.length); s.on("end", () => { console.log(code, n); c.close() }); ` +
		`s.on("error", e => console.log(e.code)); s.end("x".repeat(300000))`
	return []*call{
		{group: group, name: "curl, HTTP/1.1", program: curl, app: both, client: runs(curl, of("URL/echo")...), want: "200 0"},
		{group: group, name: "curl, HTTP/1.0", program: curl, app: both, client: runs(curl, of("-0", "URL/echo")...), want: "200 0"},
		{group: group, name: "curl, HTTP/2 without an upgrade", program: curl, app: both, client: runs(curl, of("--http2-prior-knowledge", "URL/echo")...), want: "200 0"},
		{group: group, name: "curl, POST with 100-continue", program: curl, app: both,
			client: runs(curl, of("-H", "Expect: 100-continue", "-d", "hello", "URL/echo")...), want: "200 5"},
		{group: group, name: "curl, chunked upload", program: curl, app: both,
			client: runs(curl, of("-X", http.MethodPut, "-H", "Transfer-Encoding: chunked", "-d", "hello", "URL/echo")...), want: "200 5"},
		{group: group, name: "curl, Content-Length twice", program: curl, app: odd, client: runs(curl, of("URL/cl2")...), want: "200 5",
			differs: refused("502 87", notParsed)},
		{group: group, name: "Python, GET", program: python, app: both, client: runs(python, "-c", strings.Replace(ask, "%s", "timeout=20", 1)), want: "200"},
		{group: group, name: "Python, POST", program: python, app: both, client: runs(python, "-c", strings.Replace(ask, "%s", "data=b'hello', timeout=20", 1)), want: "200 hello"},
		{group: group, name: "Python, Transfer-Encoding and Content-Length", program: python, app: odd,
			client: runs(python, "-c", strings.ReplaceAll(strings.Replace(ask, "%s", "timeout=20", 1), "/echo", "/te+cl")), want: "200 hello"},
		{group: group, name: "Node, GET", program: node, app: both, client: runs(node, "-e", nodeAsk("{}", "")), want: "200 0"},
		{group: group, name: "Node, POST of 300 kB", program: node, app: both, client: runs(node, "-e", nodeAsk(`{method: "POST"}`, `"x".repeat(300000)`)), want: "200 300000"},
		{group: group, name: "Node, HTTP/2 without an upgrade", program: node, app: both, client: runs(node, "-e", nodeH2), want: "200 300000"},
	}
}

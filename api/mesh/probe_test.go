package mesh_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func httpGet(path string) mesh.Probe {
	return mesh.Probe{HTTPGet: &mesh.HTTPGetProbe{Path: path, Port: 8080}}
}

// The rows were tried on a kubelet 1.36.
func TestTarget(t *testing.T) {
	tests := map[string]string{ // path in the manifest: target that the kubelet sends
		"":                        "/",
		"/":                       "/",
		"/healthz":                "/healthz",
		"/healthz/":               "/healthz/",
		"a":                       "/a",
		"?x=1":                    "/?x=1",
		"//healthz":               "/",
		"//host/path":             "/path",
		"http://other/abs?q":      "/abs?q",
		"https://u:p@other:1/abs": "/abs",
		"///x":                    "///x",
		"*":                       "/*",
		"/a?":                     "/a?",
		"/a??x":                   "/a??x",
		"/a?x?":                   "/a?x?",
		"/a?x=1&y=%2F":            "/a?x=1&y=%2F",
		"/a\nb":                   "/a%0Ab",
		"/a b":                    "/a%20b",
		`/a"b`:                    "/a%22b",
		`/a\b`:                    "/a%5Cb",
		"/ä":                      "/%C3%A4",
		"/a%2Fb":                  "/a%2Fb",
		"/a%2fb":                  "/a%2fb",
		"/a%3Bb":                  "/a%3Bb",
		"/a%23b":                  "/a%23b",
		"/a%00b":                  "/a%00b",
		"/a%2E%2E/b":              "/a%2E%2E/b",
		"/a//b":                   "/a//b",
		"/a/../b":                 "/a/../b",
		"/./a":                    "/./a",
		"/..":                     "/..",
		"/a;b":                    "/a;b",
		"/a+b":                    "/a+b",
		"/a[1]":                   "/a[1]",
		"/a'b":                    "/a'b",
		"/a|b^c`d{e}":             "/a%7Cb%5Ec%60d%7Be%7D",
		"/a%zz":                   "/a%25zz",
		"/%":                      "/%25",
		"/a#frag":                 "/a",
		"/a?q=a b":                "/a?q=a b",
		"/a?q=ä":                  "/a?q=ä",
		"/a?q=%zz":                "/a?q=%zz",
		"/a?x\ny":                 "/a%3Fx%0Ay",
		"/a\x7fb":                 "/a%7Fb",
		"/$(NAME)/$$":             "/$(NAME)/$$",
		"a b:c":                   "/a%20b:c",
		"a:b":                     "", // http:b, which has no host
		"a:/b":                    "/b",
	}
	for path, want := range tests {
		t.Run(path, func(t *testing.T) {
			if got := httpGet(path).HTTPGet.Target(); got != want {
				t.Errorf("Target() of %q = %q, want %q", path, got, want)
			}
		})
	}
}

func TestVirtualPath(t *testing.T) {
	grpc := func(service string) mesh.Probe {
		return mesh.Probe{GRPC: &mesh.GRPCProbe{Port: 6852, Service: service}}
	}
	tests := map[string]struct {
		probe mesh.Probe
		want  string
	}{
		"path":                {httpGet("/healthz"), "/8080/healthz"},
		"no path":             {httpGet(""), "/8080/"},
		"no slash":            {httpGet("a"), "/8080/a"},
		"raw query":           {httpGet("/a?q=a b&ä=\"1\""), "/8080/a?q=a%20b&%C3%A4=\"1\""},
		"empty query":         {httpGet("/a?"), "/8080/a?"},
		"two slashes":         {httpGet("/a//b"), "/8080/a//b"},
		"three slashes":       {httpGet("///x"), "/8080///x"},
		"escapes":             {httpGet("/a%2Fb%3F%23"), "/8080/a%2Fb%3F%23"},
		"star":                {httpGet("*"), "/8080/*"},
		"never sent":          {httpGet("a:b"), "/8080/"},
		"TCP":                 {mesh.Probe{TCPSocket: &mesh.TCPSocketProbe{Port: 6853}}, "/tcp/6853"},
		"gRPC":                {grpc("liveness"), "/grpc/6852/liveness"},
		"gRPC, no service":    {grpc(""), "/grpc/6852"},
		"gRPC, odd service":   {grpc("a/b c?ü#%"), "/grpc/6852/a%2Fb%20c%3F%C3%BC%23%25"},
		"gRPC, dots, newline": {grpc("..\n"), "/grpc/6852/..%0A"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.probe.VirtualPath(); got != tc.want {
				t.Errorf("VirtualPath() = %q, want %q", got, tc.want)
			}
			arrives(t, tc.probe.VirtualPath())
		})
	}
}

// arrives fails the test unless the kubelet sends path, as an httpGet's, unchanged in a request that Go's server can
// read.
func arrives(t *testing.T, path string) {
	t.Helper()
	u, err := httpGet(path).HTTPGet.URL("192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequest(http.MethodGet, u.String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var wire strings.Builder
	if err := r.Write(&wire); err != nil {
		t.Fatal(err)
	}
	got, err := http.ReadRequest(bufio.NewReader(strings.NewReader(wire.String())))
	if err != nil {
		t.Fatalf("the handler cannot read %q: %v", wire.String(), err)
	}
	if got.RequestURI != path || httpGet(path).HTTPGet.Target() != path {
		t.Errorf("virtual path %q arrives as %q, Target() = %q", path, got.RequestURI, httpGet(path).HTTPGet.Target())
	}
	if rest, _ := io.ReadAll(got.Body); len(rest) > 0 {
		t.Errorf("virtual path %q brings a body", path)
	}
}

func FuzzVirtualPath(f *testing.F) {
	for _, path := range []string{"/a b?c d", "//h/%zz", "a:b", "*", "/ä?ü#x", "http://u:p@h:1//x?", "\x00\x7f", "/a?%"} {
		f.Add(path, path)
	}
	f.Fuzz(func(t *testing.T, path, service string) {
		p := httpGet(path)
		if target := p.HTTPGet.Target(); target != "" && !strings.HasPrefix(target, "/") {
			t.Errorf("Target() = %q", target)
		}
		if got := p.VirtualPath(); !strings.HasPrefix(got, "/8080/") {
			t.Errorf("VirtualPath() = %q", got)
		}
		arrives(t, p.VirtualPath())
		arrives(t, mesh.Probe{GRPC: &mesh.GRPCProbe{Port: 1, Service: service}}.VirtualPath())
	})
}

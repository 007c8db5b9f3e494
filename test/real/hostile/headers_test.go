package hostile

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// forged returns headers by which a client could pose as Envoy, as the application or as a proxy in front
// of Envoy.
func forged() []string {
	return []string{
		"x-forwarded-client-cert", "x_forwarded_client_cert", "x-forwarded_client-cert", "X_Forwarded-Client_Cert",
		"x-envoy-original-path", "x_envoy_original_path", "x-envoy-external-address", "X-Envoy-Internal", "x-envoy-original-dst-host",
		"x_envoy-peer-metadata", "x-envoy-upstream-rq-timeout-ms", "x-envoy-retry-on", "x-envoy-max-retries", "x-envoy-decorator-operation",
	}
}

// kept returns similar headers, which belong to the application.
func kept() []string {
	return []string{"x_my_header", "x-envoys", "forwarded_client_cert", "x-forwarded-for", "x-request-id", "x_forwarded_client_certificate"}
}

// TestForgedHeaders sends headers to each kind of inbound, with and without mTLS, and checks which headers the
// application receives.
func TestForgedHeaders(t *testing.T) {
	for _, envoy := range envoys {
		t.Run(filepath.Base(filepath.Dir(envoy)), func(t *testing.T) {
			v := newVictim(t, envoy)
			for name, ask := range map[string]func(context.Context, http.Header) (http.Header, error){
				"a member, HTTP/1": func(ctx context.Context, h http.Header) (http.Header, error) { return v.headers1(ctx, v.http, h, true) },
				"a member, HTTP/2": func(ctx context.Context, h http.Header) (http.Header, error) { return v.headers2(ctx, v.http2, h) },
				"a stranger, HTTP/1": func(ctx context.Context, h http.Header) (http.Header, error) {
					return v.headers1(ctx, v.http, h, false)
				},
			} {
				t.Run(name, func(t *testing.T) { checkHeaders(t, ask, name) })
			}
			t.Run("STRICT", func(t *testing.T) {
				must.Do(t, v.Put("mesh.yaml", harness.MeshYAML("STRICT")))
				must.Poll(t, "strangers to be refused", func(ctx context.Context) error {
					if _, err := v.headers1(ctx, v.http, nil, false); err == nil {
						return errAnswered
					}
					return nil
				})
				checkHeaders(t, func(ctx context.Context, h http.Header) (http.Header, error) { return v.headers1(ctx, v.http, h, true) }, "a member")
			})
		})
	}
}

func checkHeaders(t *testing.T, ask func(context.Context, http.Header) (http.Header, error), who string) {
	t.Helper()
	sent := http.Header{}
	for _, name := range append(forged(), kept()...) {
		sent[name] = []string{"forged"}
	}
	seen, err := ask(t.Context(), sent)
	must.Do(t, err)
	lower := map[string]string{}
	for name, values := range seen {
		lower[strings.ToLower(name)] = strings.Join(values, ",")
	}
	for _, name := range kept() {
		if lower[name] != "forged" {
			t.Errorf("%s is %q, want the client's value", name, lower[name])
		}
		delete(lower, name)
	}
	const client = "x-forwarded-client-cert"
	member := strings.HasPrefix(who, "a member")
	if got := lower[client]; member != strings.HasSuffix(got, "/workload/hostile") || strings.Contains(got, "forged") {
		t.Errorf("%s is %q, want the client's identity, if it is a member", client, got)
	}
	delete(lower, client)
	for name := range lower {
		if strings.HasPrefix(strings.ReplaceAll(name, "_", "-"), "x-envoy-") || strings.ReplaceAll(name, "_", "-") == client {
			t.Errorf("the application sees %s: %q", name, lower[name])
		}
	}
	t.Logf("the application also sees %v", slices.Sorted(maps.Keys(lower)))
}

// headers1 returns the headers that the application receives over HTTP/1, in the spelling of h.
func (v *victim) headers1(ctx context.Context, at string, h http.Header, member bool) (http.Header, error) {
	dial := stranger(at)
	if member {
		dial = memberWith("http/1.1", at)
	}
	c, err := dial(ctx, v)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	var text strings.Builder
	text.WriteString("GET /headers HTTP/1.1\r\nHost: victim\r\n")
	for name, values := range h {
		text.WriteString(name + ": " + values[0] + "\r\n")
	}
	if _, err := io.WriteString(c, text.String()+"\r\n"); err != nil {
		return nil, err
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return nil, err
	}
	return decodeHeaders(answer)
}

// headers2 is headers1 over HTTP/2.
func (v *victim) headers2(ctx context.Context, at string, h http.Header) (http.Header, error) {
	c, err := memberWith("h2", at)(ctx, v)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	conn, err := clientConn(ctx, c)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	r := &http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "http", Host: "victim", Path: "/headers"}, Header: h}
	answer, err := conn.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	return decodeHeaders(answer)
}

func decodeHeaders(answer *http.Response) (h http.Header, err error) {
	defer func() { _ = answer.Body.Close() }()
	return h, json.NewDecoder(answer.Body).Decode(&h)
}

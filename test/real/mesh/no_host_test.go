package mesh

import (
	"bufio"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/test/must"
)

// TestRequestWithoutHost sends requests of HTTP/1.0. The application receives the host that the client names, or else
// the address of the inbound, and no additional header.
func TestRequestWithoutHost(t *testing.T) {
	t.Parallel()
	m := newMesh(t, permissive)
	web := newInbound(t, m, "web", "http", "http")
	newPair(t, m, web)
	for name, tc := range map[string]struct{ head, host string }{
		"no Host header": {"", web.at},
		"Host header":    {"Host: shop:81\r\n", "shop:81"},
	} {
		t.Run(name, func(t *testing.T) {
			conn := must.Connect(t, web.at)
			_, err := io.WriteString(conn, "GET /x HTTP/1.0\r\n"+tc.head+"\r\n")
			must.Do(t, err)
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			must.Do(t, err)
			defer response.Body.Close() //nolint:errcheck // the body was read
			var seen struct {
				Host    string
				Headers http.Header
			}
			must.Do(t, json.NewDecoder(response.Body).Decode(&seen))
			if seen.Host != tc.host {
				t.Errorf("the application sees host %q, want %q", seen.Host, tc.host)
			}
			if diff := cmp.Diff([]string{"X-Forwarded-Proto"}, slices.Sorted(maps.Keys(seen.Headers))); diff != "" {
				t.Errorf("headers of the application, -want +got:\n%s", diff)
			}
		})
	}
}

package mesh

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestOfferedUpgrades sends requests whose upgrade a server may ignore. Envoy returns 403 unless it is configured to
// ignore the upgrade.
func TestOfferedUpgrades(t *testing.T) {
	t.Parallel()
	m := newMesh(t, permissive)
	web := newInbound(t, m, "web", "http", "http")
	p := newPair(t, m, web)
	for name, request := range map[string]string{
		"TLS":    "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: TLS/1.2\r\n\r\n",
		"HTTP/2": "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
	} {
		for from, at := range map[string]string{"plain": web.at, "through the client's Envoy": p.a.Outbounds["web"]} {
			t.Run(name+", "+from, func(t *testing.T) {
				conn := must.Connect(t, at)
				_, err := io.WriteString(conn, request)
				must.Do(t, err)
				response, err := http.ReadResponse(bufio.NewReader(conn), nil)
				must.Do(t, err)
				defer response.Body.Close() //nolint:errcheck // the body was read
				var seen harness.Answer
				if err := json.NewDecoder(response.Body).Decode(&seen); response.StatusCode != http.StatusOK || err != nil {
					t.Errorf("the answer is %s, and not the application's: %v", response.Status, err)
				}
			})
		}
	}
}

package webhook_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/webhook"
)

// In a PERMISSIVE mesh Envoy waits for the client's first bytes, which these protocols do not send.
func TestServerFirstPorts(t *testing.T) {
	tests := map[string]struct {
		annotations, ports string
		strict             bool
		want               string
	}{
		"by number":            {ports: `{"containerPort": 3306}`, want: "3306 (mysql): the server sends first"},
		"by name":              {ports: `{"name": "smtp-in", "containerPort": 2525}`, want: "2525 (smtp): the server sends first"},
		"two":                  {ports: `{"containerPort": 22}, {"containerPort": 25}`, want: "22 (ssh), 25 (smtp): the server sends first"},
		"by another name":      {ports: `{"name": "mariadb", "containerPort": 13306}`, want: "13306 (mariadb): the server sends first"},
		"the client first":     {ports: `{"name": "http", "containerPort": 8080}, {"containerPort": 5432}`},
		"UDP":                  {ports: `{"containerPort": 22, "protocol": "UDP"}`},
		"strict":               {ports: `{"containerPort": 3306}`, strict: true},
		"marked":               {ports: `{"containerPort": 3306}`, annotations: `"sonde.dev/server-first-ports": "22,3306"`},
		"excluded":             {ports: `{"containerPort": 22}`, annotations: `"traffic.kuma.io/exclude-inbound-ports": "22"`},
		"a gateway":            {ports: `{"containerPort": 22}`, annotations: `"kuma.io/gateway": "enabled"`},
		"another one's marked": {ports: `{"containerPort": 21}`, annotations: `"sonde.dev/server-first-ports": "22"`, want: "21 (ftp): the server sends first"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := enabled()
			if tc.strict {
				c.strict = "default"
			}
			r := review(t, newServer(t, c.options()), webhook.PathInject, podReview("shop", fmt.Appendf(nil,
				`{"metadata":{"annotations":{%s}},"spec":{"containers":[{"name":"app","ports":[%s]}]}}`, tc.annotations, tc.ports)))
			warned := strings.Join(r.Warnings, "\n")
			if !r.Allowed || strings.Contains(warned, "sends first") != (tc.want != "") || !strings.Contains(warned, tc.want) {
				t.Errorf("allowed %t, warnings %q, want %q", r.Allowed, r.Warnings, tc.want)
			}
		})
	}
}

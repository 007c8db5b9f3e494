package lb

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestFamilies parses listeners as Envoy's admin interface returns them.
func TestFamilies(t *testing.T) {
	tests := map[string]struct {
		listener string
		want     []family
	}{
		"IPv4":        {`{"address": {"socket_address": {"address": "10.0.0.1", "port_value": 80}}}`, []family{ipv4}},
		"IPv6":        {`{"address": {"socket_address": {"address": "fd00::1"}}}`, []family{ipv6}},
		"all IPv4":    {`{"address": {"socket_address": {"address": "0.0.0.0"}}}`, []family{ipv4}},
		"all IPv6":    {`{"address": {"socket_address": {"address": "::"}}}`, []family{ipv6}},
		"all":         {`{"address": {"socket_address": {"address": "::", "ipv4_compat": true}}}`, families},
		"mapped":      {`{"address": {"socket_address": {"address": "::ffff:10.0.0.1"}}}`, []family{ipv4}},
		"a socket":    {`{"address": {"pipe": {"path": "ready.sock"}}}`, families},
		"no address":  {`{}`, families},
		"a host name": {`{"address": {"socket_address": {"address": "localhost"}}}`, families},
		"two addresses": {`{"address": {"socket_address": {"address": "fd00::1"}},
			"additional_addresses": [{"address": {"socket_address": {"address": "10.0.0.1"}}}]}`, families},
		"two of one family": {`{"address": {"socket_address": {"address": "10.0.0.2"}},
			"additional_addresses": [{"address": {"socket_address": {"address": "10.0.0.1"}}}]}`, []family{ipv4}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var l listener
			if err := json.Unmarshal([]byte(tc.listener), &l); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, l.families()); diff != "" {
				t.Errorf("families() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestGaugesThatAreNone(t *testing.T) {
	for _, text := range []string{"<html>\n", "server.live: many\n", "x\n", "\n"} {
		if got, err := parseGauges([]byte(text)); err == nil {
			t.Errorf("parseGauges(%q) = %v, want an error", text, got)
		}
	}
}

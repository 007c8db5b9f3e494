package mesh_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestSetDefaults(t *testing.T) {
	tests := map[string]struct{ object, want mesh.Object }{
		"mesh without mTLS": {&mesh.Mesh{Name: "a"}, &mesh.Mesh{Name: "a"}},
		"backend": {
			withBackends("a", mesh.Backend{Name: "a", Type: "builtin"}),
			withBackends("a", mesh.Backend{
				Name: "a", Type: "builtin", Mode: mesh.ModeStrict,
				DPCert: &mesh.DPCert{Rotation: &mesh.Rotation{Expiration: mesh.Duration(24 * time.Hour)}},
				Conf:   &mesh.BuiltinConf{CACert: &mesh.CACert{Expiration: mesh.Duration(10 * 365 * 24 * time.Hour)}},
			}),
		},
		"service": {&mesh.Service{Meta: mesh.Meta{Name: "a"}}, &mesh.Service{Meta: mesh.Meta{Mesh: "default", Name: "a"}}},
		"dataplane": {
			&mesh.Dataplane{Meta: mesh.Meta{Name: "a"}, Spec: mesh.DataplaneSpec{Networking: mesh.Networking{
				Address: "10.0.0.1", Inbound: []mesh.Inbound{{Port: 80}, {Port: 81, ServicePort: 82, ServiceAddress: "10.0.0.3", Address: "10.0.0.2"}},
				Outbound: []mesh.Outbound{{Port: 83}, {Port: 84, Address: "127.0.0.2"}},
			}}},
			&mesh.Dataplane{Meta: mesh.Meta{Mesh: "default", Name: "a"}, Spec: mesh.DataplaneSpec{Networking: mesh.Networking{
				Address: "10.0.0.1", Inbound: []mesh.Inbound{
					{Port: 80, ServicePort: 80, ServiceAddress: "127.0.0.1", Address: "10.0.0.1"},
					{Port: 81, ServicePort: 82, ServiceAddress: "10.0.0.3", Address: "10.0.0.2"},
				},
				Outbound: []mesh.Outbound{{Port: 83, Address: "127.0.0.1"}, {Port: 84, Address: "127.0.0.2"}},
			}}},
		},
		"dataplane with transparentProxying": {
			&mesh.Dataplane{Meta: mesh.Meta{Name: "a"}, Spec: mesh.DataplaneSpec{Networking: mesh.Networking{
				Address: "10.0.0.1", Inbound: []mesh.Inbound{{Port: 80}, {Port: 81, Address: "10.0.0.2"}},
				TransparentProxying: &mesh.TransparentProxying{RedirectPortOutbound: 16001},
			}}},
			&mesh.Dataplane{Meta: mesh.Meta{Mesh: "default", Name: "a"}, Spec: mesh.DataplaneSpec{Networking: mesh.Networking{
				Address: "10.0.0.1", Inbound: []mesh.Inbound{
					{Port: 80, ServicePort: 80, ServiceAddress: "10.0.0.1", Address: "10.0.0.1"},
					{Port: 81, ServicePort: 81, ServiceAddress: "10.0.0.2", Address: "10.0.0.2"},
				},
				TransparentProxying: &mesh.TransparentProxying{RedirectPortInbound: 15006, RedirectPortOutbound: 16001},
			}}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for range 2 { // it is idempotent
				tc.object.SetDefaults()
				if diff := cmp.Diff(tc.want, tc.object); diff != "" {
					t.Errorf("SetDefaults() (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestBackendValidity(t *testing.T) {
	set := &mesh.Backend{
		DPCert: &mesh.DPCert{Rotation: &mesh.Rotation{Expiration: mesh.Duration(time.Hour)}},
		Conf:   &mesh.BuiltinConf{CACert: &mesh.CACert{Expiration: mesh.Duration(2 * time.Hour)}},
	}
	for name, tc := range map[string]struct {
		backend  *mesh.Backend
		cert, ca time.Duration
	}{
		"none":    {nil, 24 * time.Hour, 87600 * time.Hour},
		"default": {&mesh.Backend{}, 24 * time.Hour, 87600 * time.Hour},
		"set":     {set, time.Hour, 2 * time.Hour},
	} {
		if cert, ca := tc.backend.CertValidity(), tc.backend.CAValidity(); cert != tc.cert || ca != tc.ca {
			t.Errorf("%s: CertValidity() = %v, CAValidity() = %v, want %v, %v", name, cert, ca, tc.cert, tc.ca)
		}
	}
}

func TestDurationText(t *testing.T) {
	const day = 24 * time.Hour
	tests := map[string]struct {
		length time.Duration
		text   string // where it differs
	}{
		"24h": {day, ""}, "1d": {day, "24h"}, "2d": {2 * day, ""}, "36h": {36 * time.Hour, ""}, "1d12h": {36 * time.Hour, "36h"},
		"10y": {3650 * day, ""}, "1y1d": {366 * day, ""}, "1w": {7 * day, "7d"}, "1y2w3d4h5m6s7ms": {382*day + 4*time.Hour + 5*time.Minute + 6*time.Second + 7*time.Millisecond, "1y17d4h5m6.007s"},
		"30m": {30 * time.Minute, ""}, "1h30m": {90 * time.Minute, ""}, "10s": {10 * time.Second, ""}, "500ms": {time.Second / 2, ""}, "1.5h": {90 * time.Minute, "1h30m"},
		"10m10s": {610 * time.Second, ""}, "1h0m10s": {3610 * time.Second, ""},
	}
	for text, tc := range tests {
		t.Run(text, func(t *testing.T) {
			d, err := mesh.ParseDuration(text)
			if err != nil || d.Std() != tc.length {
				t.Fatalf("ParseDuration() = %v, %v, want %v", d.Std(), err, tc.length)
			}
			want := tc.text
			if want == "" {
				want = text
			}
			if d.String() != want {
				t.Errorf("String() = %q, want %q", d, want)
			}
			var again mesh.Duration
			data, err := json.Marshal(d)
			if err == nil {
				err = json.Unmarshal(data, &again)
			}
			if err != nil || again != d || string(data) != `"`+want+`"` {
				t.Errorf("JSON %s becomes %v, %v", data, again, err)
			}
		})
	}
}

func TestParseDurationRefuses(t *testing.T) {
	for _, text := range []string{
		"", "0", "0s", "-1h", "1", "1 day", "d", "1d2y", "1d1d", "1.5d", "-1d", "+1d", "1d-1h", "300y", "292y300d", "99999999999999999999y", "10years",
	} {
		if d, err := mesh.ParseDuration(text); err == nil || err.Error() != mesh.AllowedDuration {
			t.Errorf("ParseDuration(%q) = %v, %v", text, d, err)
		}
	}
}

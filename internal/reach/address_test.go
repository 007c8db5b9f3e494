package reach

import "testing"

func TestAddress(t *testing.T) {
	const agents, admin = "must be host:port, with a port from 1 to 65535: the one for agents and ADS has port 5678, or the one set by --agents-port of sonde-cp",
		"must be host:port, with a port from 1 to 65535: the admin API has port 5681, or the one set by --admin-port of sonde-cp"
	tests := map[string]struct {
		service   Service
		text      string
		want, err string
	}{
		"plain":             {service: Agents, text: "cp.example:5678", want: "cp.example:5678"},
		"IPv6":              {service: Admin, text: "[::1]:5681", want: "[::1]:5681"},
		"https":             {service: Admin, text: "https://cp.example:5681", want: "cp.example:5681"},
		"a slash":           {service: Admin, text: "cp.example:5681/", want: "cp.example:5681"},
		"as a browser":      {service: Agents, text: "HTTPS://cp.example:5678//", want: "cp.example:5678"},
		"http":              {service: Agents, text: "http://cp.example:5678/", err: "must not be http: the control plane speaks TLS: write cp.example:5678"},
		"another scheme":    {service: Agents, text: "grpc://cp.example:5678", err: agents},
		"no port":           {service: Admin, text: "https://cp.example", err: admin},
		"no host":           {service: Admin, text: ":5681", err: admin},
		"nothing":           {service: Admin, text: "", err: admin},
		"a scheme alone":    {service: Admin, text: "https://", err: admin},
		"a path":            {service: Admin, text: "https://cp.example:5681/api", err: admin},
		"a path, then port": {service: Admin, text: "cp.example/x:5681", err: admin},
		"a user":            {service: Admin, text: "https://me@cp.example:5681", err: admin},
		"port 0":            {service: Admin, text: "cp.example:0", err: admin},
		"a large port":      {service: Admin, text: "cp.example:65536", err: admin},
		"a port by name":    {service: Admin, text: "cp.example:https", err: admin},
		"IPv6 without [ ]":  {service: Admin, text: "::1:5681", err: admin},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			before := "before:1"
			flag := AddressFlag{Service: tc.service, To: &before}
			err := flag.Set(tc.text)
			if tc.err != "" {
				if err == nil || err.Error() != tc.err {
					t.Errorf("error = %v, want %q", err, tc.err)
				}
				tc.want = "before:1"
			} else if err != nil {
				t.Error(err)
			}
			if flag.String() != tc.want {
				t.Errorf("address = %q, want %q", flag.String(), tc.want)
			}
		})
	}
}

func TestWrongPort(t *testing.T) {
	want := "it is the control plane's port for health and metrics: the admin API has port 5681, or the one set by --admin-port of sonde-cp"
	if got := Admin.WrongPort(Health); got != want {
		t.Errorf("WrongPort() = %q, want %q", got, want)
	}
	for port, want := range map[string]*Service{"5678": &Agents, "5681": &Admin, "5680": &Health, "5443": &Webhook, "443": nil, "": nil} {
		if got := Usual(port); got != want {
			t.Errorf("Usual(%q) = %v, want %v", port, got, want)
		}
	}
}

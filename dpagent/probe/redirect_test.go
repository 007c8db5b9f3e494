package probe_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// The application's own Location is passed on if the caller does not follow it; otherwise another one is used.
func TestStoppedRedirects(t *testing.T) {
	const other = "http://warning.sonde.invalid/"
	long := "http://elsewhere.example/" + strings.Repeat("a", 4<<10)
	tests := map[string]struct {
		status   string
		location string
		host     string // Host of the request; "" for the pod's address
		want     string
	}{
		"elsewhere":                         {status: "302", location: "http://elsewhere.example/a?b#c"},
		"307":                               {status: "307", location: "https://elsewhere.example/"},
		"without a scheme":                  {status: "302", location: "//elsewhere.example/"},
		"to another address of the machine": {status: "302", location: "http://127.0.0.2/"},
		"too long":                          {status: "302", location: long, want: other},
		"of a status that is not followed":  {status: "300", location: "http://127.0.0.1:1/", want: other},
		"the same, relative":                {status: "304", location: "/new", want: other},
		"no Location":                       {status: "302", want: other},
		"no URL, not followed":              {status: "300", location: ":bad", want: other},
		"to the name of the caller":         {status: "302", location: "http://vm-1.example/", host: "vm-1.example:9000", want: other},
		"to another name than the caller's": {status: "302", location: "http://vm-2.example/", host: "vm-1.example:9000"},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			pod := newPod(t)
			head := fmt.Sprintf("HTTP/1.1 %s x\r\nSet-Cookie: SECRET\r\n", tc.status)
			if tc.location != "" {
				head += "Location: " + tc.location + "\r\n"
			}
			p := get(pod.answer(head+"Content-Length: 0\r\n\r\n").port, "/")
			r := pod.request(pod.serve(probe.Options{Table: mesh.ProbeTable{p}}), p)
			r.Host = tc.host
			response, err := (&http.Transport{DisableKeepAlives: true, DialContext: pod.dial}).RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = response.Body.Close() }()
			want := tc.want
			if want == "" {
				want = tc.location
			}
			if got := response.Header.Get("Location"); response.StatusCode != http.StatusFound || got != want {
				t.Errorf("answer = %d to %q, want 302 to %q", response.StatusCode, got, want)
			}
			if cookie := response.Header.Get("Set-Cookie"); cookie != "" {
				t.Errorf("Set-Cookie of the application = %q, want none", cookie)
			}
		})
	}
}

// As much of a body is passed on as the kubelet reads.
func TestStoppedRedirectBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		body := strings.Repeat("0123456789", 2<<10)
		head := fmt.Sprintf("HTTP/1.1 302 Found\r\nLocation: http://elsewhere.example/\r\nContent-Length: %d\r\n\r\n", len(body))
		p := get(pod.answer(head+body).port, "/")
		response, err := (&http.Transport{DisableKeepAlives: true, DialContext: pod.dial}).RoundTrip(pod.request(pod.serve(probe.Options{Table: mesh.ProbeTable{p}}), p))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		got, err := io.ReadAll(response.Body)
		if err != nil || string(got) != body[:10<<10] {
			t.Errorf("body = %d bytes, error %v, want the first 10 KiB", len(got), err)
		}
	})
}

func (p *pod) request(address string, of mesh.Probe) *http.Request {
	p.t.Helper()
	r, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, "http://"+address+of.VirtualPath(), nil)
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

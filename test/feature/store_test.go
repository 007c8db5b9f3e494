package feature

import (
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/test/featuretest"
	"github.com/sonde-mesh/sonde/xds/envoysim"
	"github.com/sonde-mesh/sonde/xds/resource"
)

const secondAPI = `
type: Dataplane
mesh: default
name: api-2
networking:
  address: 10.0.0.4
  inbound:
  - {port: 80, tags: {kuma.io/service: api, kuma.io/protocol: http}}
`

// A broken file in a watched directory is reported and changes nothing for any client. Other files are still read.
func TestBrokenFile(t *testing.T) {
	tests := map[string]struct{ file, text, problem string }{
		"no YAML":               {"api-1.yaml", "type: Dataplane\nname: [", "api-1.yaml"},
		"unknown field":         {"api-1.yaml", strings.Replace(secondAPI, "port: 80", "port: 80, prot: 1", 1), "prot"},
		"the same object again": {"other.yaml", strings.Replace(secondAPI, "api-2", "db-1", 1), "db-1"},
		"empty":                 {"db-1.yaml", "", "empty"},
		"unknown mesh":          {"other.yaml", strings.Replace(secondAPI, "mesh: default", "mesh: nowhere", 1), "nowhere"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := featuretest.Watch(t, "two-services")
			delta, sotw := f.Connect("web-1", envoysim.Delta), f.Connect("web-1", envoysim.SotW)
			for _, web := range []*featuretest.Client{delta, sotw} {
				web.Sent(firstSync...)
			}
			f.Write(tc.file, tc.text)
			if p := f.Problems(1)[0].Error(); !strings.Contains(p, tc.problem) {
				t.Errorf("the problem is %q, want one with %q", p, tc.problem)
			}
			for _, web := range []*featuretest.Client{delta, sotw} {
				web.Sent()
			}
			f.Write("web-3.yaml", strings.NewReplacer("api-2", "db-2", "service: api", "service: db", ", kuma.io/protocol: http", "").Replace(secondAPI))
			for _, web := range []*featuretest.Client{delta, sotw} {
				web.Expect(resource.Endpoint, "db").Addresses("10.0.0.4:80+mtls", "10.0.0.5:5432+mtls")
				web.Sent("endpoint db")
			}
		})
	}
}

func TestFilesChange(t *testing.T) {
	both(t, func(t *testing.T, p envoysim.Protocol) {
		f := featuretest.Watch(t, "two-services")
		web := f.Connect("web-1", p)
		web.Sent(firstSync...)
		f.Write("api-2.yaml", secondAPI)
		web.Expect(resource.Endpoint, "api").Addresses("10.0.0.3:80+mtls", "10.0.0.4:80+mtls")
		f.Write("api-2.yaml", strings.Replace(secondAPI, "http}", "http}, health: {ready: false}", 1))
		web.Expect(resource.Endpoint, "api").Addresses("10.0.0.3:80+mtls")
		web.Sent("endpoint api", "endpoint api")
		f.Remove("api-1.yaml")
		web.Expect(resource.Endpoint, "api").Addresses()
		web.Sent("endpoint api")
	})
}

package feature

import (
	"fmt"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/featuretest"
	"github.com/sonde-mesh/sonde/xds/envoysim"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// A client that stops reading delays nobody, and what it misses is not stored. When it reads again, it gets a bounded number
// of old responses, and then the current state.
func TestClientStopsReading(t *testing.T) {
	const (
		changes = 200
		// each change is about 5 KiB on the wire.
		endpoints = 100
		// 16 responses may be unanswered, and one more may be on its way when the first of them is answered.
		atMost = 16 + 2
	)
	both(t, func(t *testing.T, p envoysim.Protocol) {
		f := featuretest.Start(t, "two-services")
		f.Put("web-2.yaml")
		f.Delete(mesh.KindDataplane, "api-1")
		f.Set(many(changes, endpoints))
		web, slow := f.Connect("web-1", p), f.Connect("web-2", p)
		web.Sync()
		slow.Sync()
		before := slow.Received()
		slow.Pause()
		var last string
		for i := range changes {
			last = fmt.Sprintf("10.9.%d.1:80", i)
			f.Set(many(i, endpoints))
			web.Expect(resource.Endpoint, "api").First(last)
		}
		if got := slow.Received() - before; got != 0 {
			t.Errorf("the slow client took %d responses while it did not read", got)
		}
		slow.Resume()
		slow.Expect(resource.Endpoint, "api").First(last)
		slow.Sync()
		if got := slow.Received() - before; got > atMost {
			t.Errorf("the slow client was sent %d responses, at most %d are kept for it", got, atMost)
		}
	})
}

// many returns a service with that many endpoints outside of the mesh, which differ for each i.
func many(i, count int) *mesh.Service {
	s := &mesh.Service{Meta: mesh.Meta{Mesh: mesh.DefaultMesh, Name: "api"}}
	s.Spec.Protocol = mesh.ProtocolHTTP
	for e := range count {
		s.Spec.Endpoints = append(s.Spec.Endpoints, mesh.ServiceEndpoint{Address: fmt.Sprintf("10.9.%d.%d", i, e+1), Port: 80})
	}
	return s
}

package schedule

import (
	"fmt"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/anymesh"
)

// The few names make most objects refer to each other.
const (
	proxies      = 3 // of each mesh
	services     = 3 // of each mesh
	firstService = 'a'
)

func (s *simulation) anyProxy() string   { return fmt.Sprint("dp-", s.random.IntN(proxies)) }
func (s *simulation) anyService() string { return string(firstService + rune(s.random.IntN(services))) }

func (s *simulation) service(meshName, name string) *mesh.Service {
	return anymesh.Service(s.random, mesh.Meta{Mesh: meshName, Name: name}, func(i int) string {
		return fmt.Sprintf("240.0.%d.%d:80", i, s.random.IntN(3))
	})
}

func (s *simulation) meshService(meshName, name string) *mesh.MeshService {
	return anymesh.MeshService(s.random, mesh.Meta{Mesh: meshName, Name: name}, s.anyProxy, s.anyService)
}

func (s *simulation) dataplane(meshName, name string) *mesh.Dataplane {
	return anymesh.Dataplane(s.random, mesh.Meta{Mesh: meshName, Name: name}, fmt.Sprint("10.0.0.", 1+s.random.IntN(5)), s.anyService(), s.anyService)
}

package meshview

import (
	"maps"
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// meshServices are the MeshServices of a mesh, joined with the Dataplanes that they select. Both are indexed. So a
// changed Dataplane is compared with only a few MeshServices, and a changed MeshService with each Dataplane of the mesh
// once.
type meshServices struct {
	byName map[string]*meshServiceInput
	// byCriterion has, by criterion and by name, the MeshServices that select Dataplanes by it.
	byCriterion map[criterion]map[string]*meshServiceInput
	// selecting has, by the names of the Dataplane and of the MeshService, the MeshServices that select a Dataplane.
	selecting map[string]map[string]*meshServiceInput
	// references has the BackendRefs of outbounds that use labels, by the name of their service.
	references map[string]*mesh.BackendRef
	// dirtyMeshServices must be built again.
	dirtyMeshServices map[string]struct{}
}

// meshServiceInput is a MeshService and the Dataplanes that it selects, by name.
type meshServiceInput struct {
	object     *mesh.MeshService
	dataplanes map[string]*mesh.Dataplane
}

// portInput is one port of a MeshService.
type portInput struct {
	of *meshServiceInput
	*mesh.MeshServicePort
}

// criterion is one condition that a selected Dataplane must meet. A selector with several labels uses the first.
type criterion struct {
	by         string // "name", "label" or "tag"
	key, value string
}

func newMeshServices() meshServices {
	return meshServices{
		byName:            map[string]*meshServiceInput{},
		byCriterion:       map[criterion]map[string]*meshServiceInput{},
		selecting:         map[string]map[string]*meshServiceInput{},
		references:        map[string]*mesh.BackendRef{},
		dirtyMeshServices: map[string]struct{}{},
	}
}

func criterionOf(s *mesh.DataplaneSelector) criterion {
	by, of := "tag", map[string]string(s.DataplaneTags)
	switch {
	case s.DataplaneRef != nil:
		return criterion{by: "name", value: s.DataplaneRef.Name}
	case s.DataplaneLabels != nil:
		by, of = "label", s.DataplaneLabels.MatchLabels
	}
	for _, key := range slices.Sorted(maps.Keys(of)) {
		return criterion{by, key, of[key]}
	}
	return criterion{by: by} // Validate rejects an empty selector
}

// criteriaOf returns all criteria that a Dataplane meets.
func criteriaOf(d *mesh.Dataplane) []criterion {
	all := []criterion{{by: "name", value: d.Name}}
	for key, value := range d.AllLabels() {
		all = append(all, criterion{"label", key, value})
	}
	for _, in := range d.Spec.Networking.Inbound {
		for key, value := range in.Tags {
			all = append(all, criterion{"tag", key, value})
		}
	}
	return all
}

// setMeshService replaces a MeshService; nil removes it.
func (m *meshInput) setMeshService(name string, now *mesh.MeshService) {
	m.dirtyMeshServices[name] = struct{}{}
	if was := m.byName[name]; was != nil {
		m.touchMeshService(was)
		m.setPorts(was, nil)
		for dataplane := range was.dataplanes {
			remove(m.selecting, dataplane, name)
		}
		remove(m.byCriterion, criterionOf(&was.object.Spec.Selector), name)
		delete(m.byName, name)
	}
	if now == nil {
		return
	}
	in := &meshServiceInput{object: now, dataplanes: map[string]*mesh.Dataplane{}}
	m.byName[name] = in
	add(m.byCriterion, criterionOf(&now.Spec.Selector), name, in)
	for dataplane, p := range m.proxies {
		if p.dataplane != nil && now.Spec.Selector.Selects(p.dataplane) {
			in.dataplanes[dataplane] = p.dataplane
			add(m.selecting, dataplane, name, in)
		}
	}
	m.setPorts(in, in)
	m.touchMeshService(in)
}

// setPorts makes input the input of the services of a MeshService's ports; nil removes it from them.
func (m *meshInput) setPorts(of, input *meshServiceInput) {
	for i := range of.object.Spec.Ports {
		p := &of.object.Spec.Ports[i]
		service := m.service(mesh.MeshServiceName(of.object.Name, p.Port))
		service.port = nil
		if input != nil {
			service.port = &portInput{input, p}
		}
	}
}

// selectDataplane joins a Dataplane with the MeshServices that select it; nil for a removed one.
func (m *meshInput) selectDataplane(name string, now *mesh.Dataplane) {
	for service, in := range m.selecting[name] {
		delete(in.dataplanes, name)
		remove(m.selecting, name, service)
		m.dirtyMeshServices[service] = struct{}{}
		m.touchMeshService(in)
	}
	if now == nil || len(m.byCriterion) == 0 {
		return
	}
	for _, c := range criteriaOf(now) {
		for service, in := range m.byCriterion[c] {
			if in.object.Spec.Selector.Selects(now) {
				in.dataplanes[name] = now
				add(m.selecting, name, service, in)
				m.dirtyMeshServices[service] = struct{}{}
				m.touchMeshService(in)
			}
		}
	}
}

// touchSelecting marks dirty the services that have an inbound as an endpoint through a MeshService.
func (m *meshInput) touchSelecting(dataplane string, inbound *mesh.Inbound) {
	for _, in := range m.selecting[dataplane] {
		if slices.ContainsFunc(in.object.Spec.Ports, func(p mesh.MeshServicePort) bool { return p.Selects(inbound) }) {
			m.touchMeshService(in)
		}
	}
}

// touchMeshService marks dirty the services of a MeshService, and of BackendRefs that may resolve to it.
func (m *meshInput) touchMeshService(in *meshServiceInput) {
	for _, p := range in.object.Spec.Ports {
		m.service(mesh.MeshServiceName(in.object.Name, p.Port))
	}
	for service, ref := range m.references {
		if ref.Selects(in.object) {
			m.service(service)
		}
	}
}

// addReferences records the BackendRefs of a Dataplane that use labels. They are dropped with the last client of their
// service.
func (m *meshInput) addReferences(d *mesh.Dataplane) {
	for i := range d.Spec.Networking.Outbound {
		if ref := d.Spec.Networking.Outbound[i].BackendRef; ref != nil && len(ref.Labels) > 0 {
			m.references[ref.Service()] = ref
		}
	}
}

// referenced returns the port to which a BackendRef with labels resolves, by the name of its service; nil for none.
func (m *meshInput) referenced(service string) *portInput {
	ref := m.references[service]
	if ref == nil {
		return nil
	}
	var found *mesh.MeshService
	for _, in := range m.byName {
		if ref.Prefers(in.object, found) {
			found = in.object
		}
	}
	if found == nil {
		return nil
	}
	if at := m.services[mesh.MeshServiceName(found.Name, ref.Port)]; at != nil {
		return at.port
	}
	return nil
}

// add puts a MeshService into an index, remove takes it out.
func add[K comparable](index map[K]map[string]*meshServiceInput, key K, name string, in *meshServiceInput) {
	if index[key] == nil {
		index[key] = map[string]*meshServiceInput{}
	}
	index[key][name] = in
}

func remove[K comparable](index map[K]map[string]*meshServiceInput, key K, name string) {
	delete(index[key], name)
	if len(index[key]) == 0 {
		delete(index, key)
	}
}

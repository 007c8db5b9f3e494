package mesh

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

const (
	allowedMeshServiceName = "must be 1 to 63 lower-case letters, digits, '-', '.' and '_', with a letter or digit at both ends"
	allowedSelector        = "must be exactly one of dataplaneLabels, dataplaneTags and dataplaneRef"
	allowedPortName        = "must be at most 63 letters, digits, '-', '.' and '_'"
)

// Validate implements Object.
func (s *MeshService) Validate() error {
	var v violations
	v.check(isDNSLabel(s.Mesh), "mesh", s.Mesh, allowedLabel)
	v.check(isMeshServiceName(s.Name), "name", s.Name, allowedMeshServiceName)
	s.Spec.Selector.validate(&v)
	if !v.fits("ports", len(s.Spec.Ports)) {
		return errors.Join(v...)
	}
	first := map[uint32]int{}
	for i, p := range s.Spec.Ports {
		path := fmt.Sprintf("ports[%d]", i)
		v.port(path+".port", p.Port)
		if at, used := first[p.Port]; used {
			v.number(path+".port", int64(p.Port), fmt.Sprintf("must be unique: ports[%d] has it too", at))
		} else {
			first[p.Port] = i
		}
		v.portName(path+".name", p.Name)
		v.portName(path+".targetPort", string(p.TargetPort))
		v.protocol(path+".appProtocol", p.AppProtocol)
	}
	return errors.Join(v...)
}

func (s *DataplaneSelector) validate(v *violations) {
	const labels, tags = "selector.dataplaneLabels.matchLabels", "selector.dataplaneTags"
	given := 0
	for _, ok := range []bool{s.DataplaneLabels != nil, s.DataplaneTags != nil, s.DataplaneRef != nil} {
		if ok {
			given++
		}
	}
	switch {
	case given == 0:
		v.add("selector", "", allowedSelector)
	case given > 1:
		v.bare("selector", "{...}", allowedSelector)
	case s.DataplaneLabels != nil:
		v.check(len(s.DataplaneLabels.MatchLabels) > 0, labels, "",
			"must have a label: without one, every Dataplane of the mesh would be an endpoint")
	case s.DataplaneTags != nil:
		v.check(len(s.DataplaneTags) > 0, tags, "",
			"must have a tag: without one, every Dataplane of the mesh would be an endpoint")
		for _, key := range slices.Sorted(maps.Keys(s.DataplaneTags)) {
			v.check(s.DataplaneTags[key] != "*", tagField(tags, key), "*",
				"must be a value that inbounds have: '*' matches nothing")
		}
	default:
		v.check(isDNSSubdomain(s.DataplaneRef.Name), "selector.dataplaneRef.name", s.DataplaneRef.Name, allowedSubdomain)
	}
}

// portName checks the name of a port, which may be absent.
func (v *violations) portName(field, name string) {
	v.check(name == "" || len(name) <= maxLabel && isOf(name, "._-"), field, name, allowedPortName)
}

// isMeshServiceName follows Kuma 2.9, whose names may contain '_': its own MeshServices were named after
// kuma.io/service.
func isMeshServiceName(s string) bool {
	if len(s) > maxLabel || s == "" || !isLowerAlnum(s[0]) || !isLowerAlnum(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isLowerAlnum(c) && c != '-' && c != '.' && c != '_' {
			return false
		}
	}
	return true
}

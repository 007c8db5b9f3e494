package mesh

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// allowedLabelPart is FieldError.Allowed of the parts of a label by which a BackendRef selects.
const allowedLabelPart = "must be a label of letters, digits, '.', '_', '-' and in its name '/'"

func (o *Outbound) validate(v *violations, path string, taken *listeners) {
	addr, err := netip.ParseAddr(o.Address)
	addr = addr.Unmap()
	ok := err == nil && !addr.IsMulticast() && addr.Zone() == ""
	allowed := allowedIP
	if err != nil && isHostName(o.Address) {
		allowed += unresolved
	}
	v.check(ok, path+".address", o.Address, allowed)
	v.port(path+".port", o.Port)
	if ok {
		taken.add(v, path, addr, o.Port)
	}
	switch {
	case o.BackendRef != nil && len(o.Tags) > 0:
		v.bare(path+".tags", "{...}", "must be absent: the outbound has a backendRef, and goes to one service")
	case o.BackendRef != nil:
		o.BackendRef.validate(v, path+".backendRef")
	default:
		if _, ok := o.Tags[TagService]; !ok {
			v.add(tagField(path+".tags", TagService), "", allowedSegment+"; or backendRef must name a MeshService")
		}
		v.tags(path+".tags", o.Tags)
	}
}

func (r *BackendRef) validate(v *violations, path string) {
	v.check(r.Kind == string(KindMeshService), path+".kind", r.Kind, allowedBackend(r.Kind))
	if r.Kind != string(KindMeshService) {
		return
	}
	switch {
	case r.Name != "" && len(r.Labels) > 0:
		v.bare(path+".labels", "{...}", "must be absent: name says which MeshService it is")
	case r.Name != "":
		v.check(isMeshServiceName(r.Name), path+".name", r.Name, allowedMeshServiceName)
	case len(r.Labels) == 0:
		v.add(path+".name", "", allowedMeshServiceName+"; or labels must select it")
	}
	v.port(path+".port", r.Port)
	for _, key := range slices.Sorted(maps.Keys(r.Labels)) {
		value := r.Labels[key]
		v.check(isOf(key, "._-/") && isOf(value, "._-"), tagField(path+".labels", key), cmp.Or(value, `""`), allowedLabelPart)
	}
	if n := len(r.Service()); n > maxName {
		v.bare(path+".labels", "{...}", fmt.Sprintf(
			"must be fewer or shorter: the name that they give the service has %d characters, at most %d are allowed",
			n, maxName))
	}
}

// allowedBackend says what to write instead of a kind other than MeshService.
func allowedBackend(kind string) string {
	const must = "must be " + string(KindMeshService)
	switch kind {
	case "MeshExternalService":
		return must + ": Sonde has no MeshExternalService. Write a Service with the IP address as an endpoint, and tags with its name as " + TagService + " instead of backendRef"
	case "MeshMultiZoneService":
		return must + ": Sonde has no zones. Name the " + string(KindMeshService) + " itself"
	}
	return meant(must, kind, string(KindMeshService))
}

// Package explain describes problems of a view, in the same words for the admin API, the log and sondectl validate.
package explain

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// MaxUnknown is how many unknown services are described individually. MoreUnknown counts the rest.
const MaxUnknown = 20

// NoEndpoints returns why a service has no endpoint.
func NoEndpoints(why meshview.NoEndpoints) string {
	switch why.Cause {
	case meshview.NoMeshService:
		return noMeshService(why)
	case meshview.NoServicePort:
		return fmt.Sprintf("MeshService %q has no port %d: it has %s",
			why.MeshService.Object.Name, why.Ref.Port, servicePorts(why.MeshService.Object))
	case meshview.NoDataplane:
		return fmt.Sprintf("MeshService %q selects no Dataplane: its selector is %s",
			why.MeshService.Object.Name, why.MeshService.Object.Spec.Selector)
	case meshview.NoTargetPort:
		return noTargetPort(why)
	case meshview.NoTaggedInbound:
		return noTaggedInbound(why)
	case meshview.NoUsedInbound:
		if why.Port != nil {
			return fmt.Sprintf("the inbounds of MeshService %q, port %d, have state %s",
				why.MeshService.Object.Name, why.Port.Port, mesh.InboundIgnored)
		}
		return "its inbounds have state " + string(mesh.InboundIgnored)
	default:
		return "its Service names no endpoint"
	}
}

func noMeshService(why meshview.NoEndpoints) string {
	if len(why.Ref.Labels) > 0 {
		return "no MeshService has the labels " + mesh.Pairs(why.Ref.Labels)
	}
	return fmt.Sprintf("there is no MeshService %q%s", why.Ref.Name, mesh.DidYouMean(why.Ref.Name, why.Names))
}

func noTargetPort(why meshview.NoEndpoints) string {
	inbounds := make([]string, 0, len(why.Inbounds))
	for _, p := range why.Inbounds {
		inbounds = append(inbounds, port(p.Number, p.Name))
	}
	return fmt.Sprintf("port %d of MeshService %q has targetPort %s, which no inbound of the Dataplanes that it selects (%s) has: they have %s",
		why.Port.Port, why.MeshService.Object.Name, cmp.Or(string(why.Port.TargetPort), number(why.Port.Port)),
		mesh.Few(why.MeshService.Dataplanes), cmp.Or(mesh.Few(inbounds), "no inbound"))
}

func noTaggedInbound(why meshview.NoEndpoints) string {
	text := fmt.Sprintf("no Dataplane has an inbound with %s %s, and there is no such Service",
		mesh.TagService, why.Service.Name)
	if why.MeshService != nil {
		return text + "; a MeshService of that name is reached by backendRef"
	}
	return text + mesh.DidYouMean(why.Service.Name, why.Names)
}

// UnknownService describes a service that only outbounds name.
func UnknownService(s meshview.UnknownService) string {
	text := fmt.Sprintf("mesh %q: an outbound of %s names service %q, which does not exist: calls of it fail",
		s.Mesh, mesh.Few(s.Clients.Names), s.Name)
	if hint := Hint(s); hint != "" {
		text += ": " + hint
	}
	return text
}

// MoreUnknown stands for n further services that only outbounds name.
func MoreUnknown(n int) string {
	return fmt.Sprintf("outbounds name %d more services that do not exist", n)
}

// Hint returns what may be wrong with the name of an unknown service, "" without a guess.
func Hint(s meshview.UnknownService) string {
	why := s.NoEndpoints()
	if why.Ref != nil {
		return NoEndpoints(why)
	}
	return strings.TrimPrefix(mesh.DidYouMean(s.Name, why.Names), ": ")
}

// servicePorts returns the ports of a MeshService.
func servicePorts(s *mesh.MeshService) string {
	all := make([]string, 0, len(s.Spec.Ports))
	for _, p := range s.Spec.Ports {
		all = append(all, port(p.Port, p.Name))
	}
	return cmp.Or(mesh.Few(all), "none")
}

func port(n uint32, name string) string {
	if name == "" {
		return number(n)
	}
	return number(n) + " (" + name + ")"
}

func number(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

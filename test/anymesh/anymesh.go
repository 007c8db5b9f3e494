// Package anymesh draws random objects of a mesh, and contents of broken files, for tests that change a mesh at
// random.
package anymesh

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Pick draws one of the values.
func Pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// Weighted draws an index below n. Each has a weight.
func Weighted(r *rand.Rand, n int, weight func(i int) int) int {
	sum := 0
	for i := range n {
		sum += weight(i)
	}
	i := 0
	for drawn := r.IntN(sum); drawn >= weight(i); i++ {
		drawn -= weight(i)
	}
	return i
}

// Keys returns the keys of objects, sorted, because the order of a map differs each time.
func Keys(objects map[mesh.Key]mesh.Object) []mesh.Key {
	return slices.SortedFunc(maps.Keys(objects), func(a, b mesh.Key) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Mesh, b.Mesh), cmp.Compare(a.Name, b.Name))
	})
}

// Mesh draws a Mesh with or without mTLS, in any mode.
func Mesh(r *rand.Rand, name string) *mesh.Mesh {
	m := &mesh.Mesh{Name: name}
	if mode := Pick(r, "", mesh.ModeStrict, mesh.ModePermissive); mode != "" {
		m.Spec.MTLS = &mesh.MTLS{
			EnabledBackend: "ca", Backends: []mesh.Backend{{Name: "ca", Type: mesh.BackendBuiltin, Mode: mode}},
		}
	}
	return m
}

// Service draws a Service. address returns one of its addresses, host:port, by its index.
func Service(r *rand.Rand, meta mesh.Meta, address func(i int) string) *mesh.Service {
	s := &mesh.Service{Meta: meta}
	s.Spec.Protocol = Pick(r, "", "", mesh.ProtocolHTTP, mesh.ProtocolGRPC)
	for i := range r.IntN(3) {
		s.Spec.Addresses = append(s.Spec.Addresses, address(i))
	}
	for i := range r.IntN(3) {
		s.Spec.Endpoints = append(s.Spec.Endpoints, mesh.ServiceEndpoint{
			Address: fmt.Sprintf("10.9.%d.%d", i, r.IntN(5)), Port: 80,
		})
	}
	return s
}

// Labels of Dataplanes and MeshServices, by which they are selected, and the names of inbounds.
const (
	labelApp  = "app"
	labelTeam = "team"
	portName  = "main"
)

func anyApp(r *rand.Rand) string  { return Pick(r, "web", "api", "job") }
func anyTeam(r *rand.Rand) string { return Pick(r, "red", "blue") }

// anyPort draws a port of an inbound, which MeshServices also use.
func anyPort(r *rand.Rand) uint32 { return uint32(80 + r.IntN(3)) }

// MeshService draws a MeshService that selects Dataplanes by a label, by the tag of a service or by name.
func MeshService(r *rand.Rand, meta mesh.Meta, dataplane, service func() string) *mesh.MeshService {
	s := &mesh.MeshService{Meta: meta}
	s.Labels = map[string]string{labelTeam: anyTeam(r)}
	switch r.IntN(3) {
	case 0:
		s.Spec.Selector.DataplaneLabels = &mesh.LabelSelector{MatchLabels: map[string]string{labelApp: anyApp(r)}}
	case 1:
		s.Spec.Selector.DataplaneTags = mesh.Tags{mesh.TagService: service()}
	default:
		s.Spec.Selector.DataplaneRef = &mesh.DataplaneRef{Name: dataplane()}
	}
	for _, port := range r.Perm(3)[:r.IntN(3)] {
		s.Spec.Ports = append(s.Spec.Ports, mesh.MeshServicePort{
			Port:        uint32(80 + port),
			TargetPort:  mesh.TargetPort(Pick(r, "", "", portName, "81")),
			AppProtocol: Pick(r, "", mesh.ProtocolHTTP, mesh.ProtocolGRPC),
		})
	}
	return s
}

// outbound draws an outbound in either of Kuma's forms. Its service may not exist.
func outbound(r *rand.Rand, port uint32, service func() string) mesh.Outbound {
	o := mesh.Outbound{Port: port}
	switch r.IntN(4) {
	case 0:
		o.BackendRef = &mesh.BackendRef{Kind: string(mesh.KindMeshService), Name: service(), Port: anyPort(r)}
	case 1:
		o.BackendRef = &mesh.BackendRef{
			Kind: string(mesh.KindMeshService), Labels: map[string]string{labelTeam: anyTeam(r)}, Port: anyPort(r),
		}
	default:
		o.Tags = mesh.Tags{mesh.TagService: service()}
	}
	return o
}

// inbound draws an inbound in either of Kuma's forms.
func inbound(r *rand.Rand, port uint32, service func() string) mesh.Inbound {
	in := mesh.Inbound{Port: port, ServerFirst: r.IntN(8) == 0}
	protocol := Pick(r, mesh.ProtocolTCP, mesh.ProtocolHTTP)
	if r.IntN(3) == 0 {
		in.Name, in.Protocol = Pick(r, "", portName), protocol
		in.State = Pick(r, "", mesh.InboundReady, mesh.InboundNotReady)
	} else {
		in.Tags = mesh.Tags{mesh.TagService: service(), mesh.TagProtocol: string(protocol)}
	}
	if r.IntN(4) == 0 {
		in.Health = &mesh.Health{Ready: new(bool)}
	}
	return in
}

// Dataplane draws a Dataplane at an address, in one or both of Kuma's forms, optionally with the workload as its
// label. service draws a service for its inbounds and outbounds, which is also the name of a MeshService. The
// Dataplane has at least one inbound, so that its proxy always has resources.
func Dataplane(r *rand.Rand, meta mesh.Meta, address, workload string, service func() string) *mesh.Dataplane {
	d := &mesh.Dataplane{Meta: meta}
	n := &d.Spec.Networking
	n.Address = address
	for _, port := range r.Perm(3)[:1+r.IntN(3)] {
		n.Inbound = append(n.Inbound, inbound(r, uint32(80+port), service))
	}
	for i := range r.IntN(4) {
		n.Outbound = append(n.Outbound, outbound(r, uint32(10001+i), service))
	}
	if r.IntN(2) == 0 {
		n.TransparentProxying = &mesh.TransparentProxying{}
	}
	d.Labels = map[string]string{labelApp: anyApp(r)}
	if r.IntN(3) > 0 {
		d.Labels[mesh.LabelWorkload] = workload
	}
	return d
}

// Break returns a replacement of a file's text that the store must reject, and how it is broken. other is the text of
// another file, whose objects may then be in both.
func Break(r *rand.Rand, text, other []byte) (broken []byte, how string) {
	switch how = Pick(r, "empty", "cut", "field", "port", "clash", "binary"); how {
	case "empty":
		return nil, how
	case "cut":
		return append(text[:len(text)/2:len(text)/2], "\n\t- {"...), how
	case "field":
		return append(text, "---\ntype: Service\nname: x\nnonsense: 1\n"...), how
	case "port":
		return append(text, "---\ntype: Dataplane\nname: x\nnetworking: {address: 10.0.0.1, inbound: [{port: 70000, tags: {kuma.io/service: x}}]}\n"...), how
	case "clash":
		return append(append(text, "---\n"...), other...), how
	}
	return append(text, 0xff, 0xfe), how
}

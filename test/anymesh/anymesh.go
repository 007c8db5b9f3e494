// Package anymesh draws the objects of a mesh, and the contents of broken files, for tests that change a mesh at random.
package anymesh

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Pick draws one of them.
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

// Keys returns the keys of objects, sorted: the order of a map would differ each time.
func Keys(objects map[mesh.Key]mesh.Object) []mesh.Key {
	return slices.SortedFunc(maps.Keys(objects), func(a, b mesh.Key) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Mesh, b.Mesh), cmp.Compare(a.Name, b.Name))
	})
}

// Mesh draws whether a mesh has mTLS, and in which mode.
func Mesh(r *rand.Rand, name string) *mesh.Mesh {
	m := &mesh.Mesh{Name: name}
	if mode := Pick(r, "", mesh.ModeStrict, mesh.ModePermissive); mode != "" {
		m.Spec.MTLS = &mesh.MTLS{EnabledBackend: "ca", Backends: []mesh.Backend{{Name: "ca", Type: mesh.BackendBuiltin, Mode: mode}}}
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
		s.Spec.Endpoints = append(s.Spec.Endpoints, mesh.ServiceEndpoint{Address: fmt.Sprintf("10.9.%d.%d", i, r.IntN(5)), Port: 80})
	}
	return s
}

// Dataplane draws a Dataplane at an address. It may have the workload as its label. service draws one of those that its
// inbounds and outbounds name. It has at least one inbound: a known proxy always has something.
func Dataplane(r *rand.Rand, meta mesh.Meta, address, workload string, service func() string) *mesh.Dataplane {
	d := &mesh.Dataplane{Meta: meta}
	n := &d.Spec.Networking
	n.Address = address
	for _, port := range r.Perm(3)[:1+r.IntN(3)] {
		n.Inbound = append(n.Inbound, mesh.Inbound{
			Port: uint32(80 + port), ServerFirst: r.IntN(8) == 0,
			Tags: mesh.Tags{mesh.TagService: service(), mesh.TagProtocol: string(Pick(r, mesh.ProtocolTCP, mesh.ProtocolHTTP))},
		})
		if r.IntN(4) == 0 {
			n.Inbound[len(n.Inbound)-1].Health = &mesh.Health{Ready: new(bool)}
		}
	}
	for i := range r.IntN(4) {
		n.Outbound = append(n.Outbound, mesh.Outbound{Port: uint32(10001 + i), Tags: mesh.Tags{mesh.TagService: service()}})
	}
	if r.IntN(2) == 0 {
		n.TransparentProxying = &mesh.TransparentProxying{}
	}
	if r.IntN(3) > 0 {
		d.Labels = map[string]string{mesh.LabelWorkload: workload}
	}
	return d
}

// Break returns a text that the store must not accept in place of a file's text, and how it is broken. other is the text of
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

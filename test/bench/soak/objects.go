package main

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// prodShare: one of so many proxies and services is in the second mesh.
const prodShare = 8

const secondMesh = "prod"

var meshes = []string{mesh.DefaultMesh, secondMesh}

// meshOf returns the mesh of the proxy or service with that number.
func meshOf(i int) string {
	if i%prodShare == prodShare-1 {
		return secondMesh
	}
	return mesh.DefaultMesh
}

func proxyName(i int) string { return fmt.Sprintf("proxy-%04d", i) }

func proxyID(i int) mesh.ID { return mesh.MakeID(meshOf(i), proxyName(i)) }

func proxyKey(i int) mesh.Key {
	return mesh.Key{Kind: mesh.KindDataplane, Mesh: meshOf(i), Name: proxyName(i)}
}

func workload(i int) string { return fmt.Sprintf("workload-%02d", i%20) }

func serviceName(i int) string { return fmt.Sprintf("service-%04d", i) }

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func anyMesh(r *rand.Rand, name string) *mesh.Mesh {
	m := &mesh.Mesh{Name: name}
	if mode := pick(r, "", mesh.ModeStrict, mesh.ModePermissive); mode != "" {
		m.Spec.MTLS = &mesh.MTLS{EnabledBackend: "ca", Backends: []mesh.Backend{{Name: "ca", Type: mesh.BackendBuiltin, Mode: mode}}}
	}
	return m
}

func anyService(r *rand.Rand, i int) *mesh.Service {
	s := &mesh.Service{Meta: mesh.Meta{Mesh: meshOf(i), Name: serviceName(i)}}
	s.Spec.Protocol = pick(r, "", "", mesh.ProtocolHTTP, mesh.ProtocolGRPC)
	for n := range r.IntN(3) {
		s.Spec.Addresses = append(s.Spec.Addresses, fmt.Sprintf("240.%d.%d.%d:80", n, i/250, 1+i%250))
	}
	for n := range r.IntN(3) {
		s.Spec.Endpoints = append(s.Spec.Endpoints, mesh.ServiceEndpoint{Address: fmt.Sprintf("10.9.%d.%d", n, 1+r.IntN(250)), Port: 80})
	}
	return s
}

// anyOf draws a service of the mesh that i is in.
func anyOf(r *rand.Rand, services, i int) string {
	for {
		if n := r.IntN(services); meshOf(n) == meshOf(i) {
			return serviceName(n)
		}
	}
}

// anyDataplane has at least one inbound: a known proxy always has something.
func anyDataplane(r *rand.Rand, services, i int) *mesh.Dataplane {
	d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: meshOf(i), Name: proxyName(i)}}
	n := &d.Spec.Networking
	n.Address = anyAddress(r, i)
	for port := range 1 + r.IntN(3) {
		n.Inbound = append(n.Inbound, mesh.Inbound{
			Port: uint32(80 + port), ServerFirst: r.IntN(8) == 0,
			Tags: mesh.Tags{mesh.TagService: anyOf(r, services, i), mesh.TagProtocol: string(pick(r, mesh.ProtocolTCP, mesh.ProtocolHTTP))},
		})
	}
	for port := range r.IntN(4) {
		n.Outbound = append(n.Outbound, mesh.Outbound{Port: uint32(10001 + port), Tags: mesh.Tags{mesh.TagService: anyOf(r, services, i)}})
	}
	if r.IntN(2) == 0 {
		n.TransparentProxying = &mesh.TransparentProxying{}
	}
	if r.IntN(3) > 0 {
		d.Labels = map[string]string{mesh.LabelWorkload: workload(i)}
	}
	return d
}

func anyAddress(r *rand.Rand, i int) string {
	return fmt.Sprintf("10.%d.%d.%d", r.IntN(3), i/250, 1+i%250)
}

// turn returns the Dataplane with one endpoint changed: its address, or whether it is ready.
func turn(r *rand.Rand, d *mesh.Dataplane, i int) *mesh.Dataplane {
	next := *d
	n := &next.Spec.Networking
	n.Inbound = slices.Clone(n.Inbound)
	if r.IntN(4) == 0 {
		n.Address = anyAddress(r, i)
		for e := range n.Inbound { // defaults that came from the old address
			n.Inbound[e].Address, n.Inbound[e].ServiceAddress = "", ""
		}
		return &next
	}
	in := &n.Inbound[r.IntN(len(n.Inbound))]
	ready := !in.Health.IsReady()
	in.Health = &mesh.Health{Ready: &ready}
	return &next
}

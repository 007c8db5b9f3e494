//go:build soak

package soak

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/anymesh"
)

// prodShare: one of this many proxies and services is in the second mesh.
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

// serviceOf draws a service of the mesh that contains i.
func serviceOf(r *rand.Rand, i int) string {
	for {
		if n := r.IntN(*services); meshOf(n) == meshOf(i) {
			return serviceName(n)
		}
	}
}

func anyService(r *rand.Rand, i int) *mesh.Service {
	return anymesh.Service(r, mesh.Meta{Mesh: meshOf(i), Name: serviceName(i)}, func(n int) string {
		return fmt.Sprintf("240.%d.%d.%d:80", n, i/250, 1+i%250)
	})
}

func anyMeshService(r *rand.Rand, i int) *mesh.MeshService {
	return anymesh.MeshService(r, mesh.Meta{Mesh: meshOf(i), Name: serviceName(i)},
		func() string { return proxyName(r.IntN(*proxies)) }, func() string { return serviceOf(r, i) })
}

func anyDataplane(r *rand.Rand, i int) *mesh.Dataplane {
	return anymesh.Dataplane(r, mesh.Meta{Mesh: meshOf(i), Name: proxyName(i)}, anyAddress(r, i), workload(i), func() string {
		return serviceOf(r, i)
	})
}

func anyAddress(r *rand.Rand, i int) string {
	return fmt.Sprintf("10.%d.%d.%d", r.IntN(3), i/250, 1+i%250)
}

// turn returns a copy of the Dataplane with another address, or with the readiness of one inbound flipped.
func turn(r *rand.Rand, d *mesh.Dataplane, i int) *mesh.Dataplane {
	next := *d
	n := &next.Spec.Networking
	n.Inbound = slices.Clone(n.Inbound)
	if r.IntN(4) == 0 {
		n.Address = anyAddress(r, i)
		for e := range n.Inbound { // defaults from the old address
			n.Inbound[e].Address, n.Inbound[e].ServiceAddress = "", ""
		}
		return &next
	}
	in := &n.Inbound[r.IntN(len(n.Inbound))]
	ready := !in.Health.IsReady()
	in.Health = &mesh.Health{Ready: &ready}
	return &next
}

package main

import (
	"crypto/tls"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/test/bench/controlplane"
)

// makeAuthority makes the state that every subject and the clients begin with.
func makeAuthority(folder string) error { return controlplane.MakeState(folder, mesh.DefaultMesh) }

// openAuthority opens a copy of the state that is in the folder.
func openAuthority(folder string) (*identity.Authority, error) {
	return controlplane.OpenAuthority(folder)
}

// issue makes a proxy's identity.
func issue(a *identity.Authority, proxy int) (tls.Certificate, error) {
	return controlplane.Issue(a, mesh.DefaultMesh, proxyName(proxy), workload(proxy))
}

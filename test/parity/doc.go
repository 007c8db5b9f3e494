// Package parity makes calls to applications without a mesh, through the inbound of a sidecar as a caller without a
// sidecar, and between two sidecars, with a real Envoy and the configuration of Sonde's own control plane. A call must
// end as it does without the mesh, or the table must say why it does not. The table generates results.md, and
// docs/parity.md with the calls that differ.
package parity

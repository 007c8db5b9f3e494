package pipeline

import (
	"context"
	"fmt"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/mtls"
	"github.com/sonde-mesh/sonde/meshview"
)

// Authorizer decides which client may open and keep an ADS stream of a node. p is its proxy in the newest view, nil if
// not in it. Errors are as for an xds.Authorizer.
type Authorizer func(ctx context.Context, nodeID string, p *meshview.Proxy) error

// Authorize allows an ADS stream if the client certificate has the node ID, and names the instance and the workload of
// the proxy. It needs a server with the ServerOptions of mtls.Credentials.
func Authorize(ctx context.Context, nodeID string, p *meshview.Proxy) error {
	caller, err := mtls.PeerFromContext(ctx)
	if err != nil {
		return err //nolint:wrapcheck // calls without a certificate were rejected earlier
	}
	if caller.ID() != nodeID {
		return fmt.Errorf("the certificate is for proxy %q, the node id is %q", caller.ID(), nodeID)
	}
	if caller.Path == "" {
		return fmt.Errorf("the certificate for proxy %q names no workload: its SPIFFE ID %s has no path",
			nodeID, caller.SPIFFEID)
	}
	if p == nil {
		return nil // it gets nothing until it is in the view, and is then authorised again
	}
	if p.Dataplane.Identity.Instance != caller.Instance {
		return fmt.Errorf("the certificate is for proxy %q with UID %q, the current one has UID %q",
			nodeID, caller.Instance, p.Dataplane.Identity.Instance)
	}
	if want := p.Dataplane.SPIFFEPath(); caller.Path != want && caller.Path != p.Observed.Path {
		return fmt.Errorf("the certificate is for proxy %q of workload %q, the Dataplane has workload %q", nodeID,
			mesh.WorkloadText(caller.Path), mesh.WorkloadText(want))
	}
	return nil
}

package controlplane

import (
	"context"
	"time"

	"github.com/sonde-mesh/sonde/agents"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/identity"
)

// platform is what differs between a mesh from files and one on Kubernetes.
type platform struct {
	// sources are the names of the sources of objects for the builder, the one that wins first. explicitMeshes is
	// meshview.Options.ExplicitMeshes.
	sources        []string
	explicitMeshes bool
	// identity has where the CAs are kept, and what is known of proxies.
	identity identity.Options
	// names are DNS names of the serving certificate, besides mesh.ServingName.
	names []string
	// storage keeps what agents have said. It is nil if nothing of it is kept.
	storage agents.Storage
	// reach waits until what keeps the objects and the keys can be reached. Its error is that of ctx.
	reach func(ctx context.Context) error
	// connect is called once the pipeline is there. It may set tokens, refused and tasks.
	connect func() error
	// tokens authenticates agents. It is nil if they have tokens of the control plane's own.
	tokens agents.Authenticator
	// refused is told of joins that are refused, probeFailed of probes that fail. They may be nil.
	refused     func(agents.Refusal)
	probeFailed func(agents.ProbeFailure)
	// tasks run as long as the control plane.
	tasks []func(context.Context) error
	// problems lists what is wrong with objects, for people.
	problems func() []*adminv1.Problem
	// missing returns what has not been read yet, and why; nil once all has.
	missing func() error
	// lost returns since when what keeps the objects is not heard, and why; no error while it is.
	lost func() (since time.Time, err error)
	// listened is told the addresses of the listeners, JSON.
	listened func(addresses []byte) error
	// close ends the use of the platform.
	close func() error
}

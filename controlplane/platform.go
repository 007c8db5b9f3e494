package controlplane

import (
	"context"
	"net/netip"
	"time"

	"github.com/sonde-mesh/sonde/admin"
	"github.com/sonde-mesh/sonde/agents/join"
	"github.com/sonde-mesh/sonde/agents/session"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/controller/podevents"
	"github.com/sonde-mesh/sonde/facts"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/replicas"
	"github.com/sonde-mesh/sonde/strict"
)

// platform is where the objects of a mesh come from, and its keys and records are kept: files, or a cluster.
type platform interface {
	// means are what the stages are made from.
	means() means
	// reach waits until what keeps the objects and the keys can be reached. Its error is that of ctx.
	reach(ctx context.Context) error
	// connect makes what feeds the pipeline, which is there by then. It is called once, before the methods that follow.
	connect() (connection, error)
	// peers returns the other replicas, which are known once the platform is connected; nil where there are none.
	peers() (*replicas.Peers, error)
	// replica returns the name of this replica, "" where there are none.
	replica() string
	// leads reports whether this replica does what only one of them does.
	leads() bool
	// reconfigure gets options that have changed.
	reconfigure(Live)
	// problems lists what is wrong with objects.
	problems() []*adminv1.Problem
	// missing returns what has not been read yet, and why; nil once all has.
	missing() error
	// lost returns since when what keeps the objects is not heard, and why; no error while it is.
	lost() (since time.Time, err error)
	// emptied is passed on to pipeline.Options.Emptied.
	emptied() bool
	// listened gets the addresses of the listeners, JSON.
	listened(addresses []byte) error
	// close ends the use of the platform, connected or not.
	close() error
}

// means are what a platform has before it is connected.
type means struct {
	// sources are the names of the sources of objects for the builder, the one that wins first. explicitMeshes is
	// meshview.Options.ExplicitMeshes.
	sources        []string
	explicitMeshes bool
	// servicesChecked is passed on to meshview.Options.
	servicesChecked bool
	// identity has where the CAs are kept, and what is known of proxies.
	identity identity.Options
	// names are DNS names of the serving certificate, besides mesh.ServingName.
	names []string
	// storage keeps what agents have said. It is nil if nothing of it is kept.
	storage facts.Storage
}

// connection is what a platform has once it is connected.
type connection struct {
	// tokens authenticates agents.
	tokens join.Authenticator
	// access knows who may call the admin API without the admin token, nil if nobody may.
	access admin.Access
	// tasks run as long as the control plane.
	tasks []func(context.Context) error
	// restarts says what agents are told of restarts, nil if none are granted.
	restarts session.Restarts
	// decisions are what this replica has decided about restarts, for the others; restartAnswers answers sondectl. Both
	// are nil if none are granted.
	decisions      func(*peerv1.ListDecisionsRequest) *peerv1.ListDecisionsPart
	restartAnswers admin.Restarts
	// frozen says why nothing may follow from silence, freeze freezes and thaws zones for sondectl. Both are nil where there are no zones.
	frozen func() string
	freeze admin.Freeze
	// events are about pods, nil where there are no pods: the log and sondectl get proxies say what they would.
	events *podevents.Events
	// podsAt returns which pods have had addresses at some time, nil where there are no pods.
	podsAt func(ctx context.Context, last map[netip.Addr]time.Time) map[netip.Addr]strict.Pod
	// servingWaits are what else a rotation of the serving CA waits for, see rotation.Options.
	servingWaits []func(context.Context, serving.Rotation) []string
}

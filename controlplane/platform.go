package controlplane

import (
	"context"
	"net/netip"
	"time"

	"github.com/sonde-mesh/sonde/admin"
	"github.com/sonde-mesh/sonde/agents"
	"github.com/sonde-mesh/sonde/agents/join"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/controller/podevents"
	"github.com/sonde-mesh/sonde/facts"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/replicas"
	"github.com/sonde-mesh/sonde/strict"
)

// platform provides the objects of a mesh, and storage for keys and records: files, or a cluster.
type platform interface {
	// means returns the parts that exist before connect.
	means() means
	// reach waits until the platform's storage is reachable. It returns the error of ctx.
	reach(ctx context.Context) error
	// connect creates the parts that pass objects to the existing pipeline. It is called once, before the methods that
	// follow.
	connect() (connection, error)
	// peers returns the other replicas, whose names are known after connect, or nil.
	peers() (*replicas.Peers, error)
	// replica returns the name of this replica, "" if the control plane has only one.
	replica() string
	// leads reports whether this replica is the leader.
	leads() bool
	// reconfigure receives changed options.
	reconfigure(Live)
	// problems lists the problems of objects.
	problems() []*adminv1.Problem
	// missing returns which kinds have not been read yet, and why; nil once all have been read.
	missing() error
	// lost returns since when the source of objects is disconnected, and why; no error while it is connected.
	lost() (since time.Time, err error)
	// emptied is pipeline.Options.Emptied.
	emptied() bool
	// listened receives the addresses of the listeners as JSON.
	listened(addresses []byte) error
	// close releases the platform, connected or not.
	close() error
}

// means are the parts of a platform that exist before connect.
type means struct {
	// sources are the builder's names for the sources of objects, by precedence. explicitMeshes is
	// meshview.Options.ExplicitMeshes.
	sources        []string
	explicitMeshes bool
	// servicesChecked is meshview.Options.ServicesChecked.
	servicesChecked bool
	// identity has the storage of the CAs, and the records of proxies.
	identity identity.Options
	// names are DNS names of the serving certificate, besides mesh.ServingName.
	names []string
	// storage keeps the agents' reports, nil for memory only.
	storage facts.Storage
}

// connection are the parts of a platform that exist after connect.
type connection struct {
	// tokens authenticates agents.
	tokens join.Authenticator
	// access authorizes callers of the admin API that do not have the admin token, nil if that token is always
	// required.
	access admin.Access
	// tasks run as long as the control plane.
	tasks []func(context.Context) error
	// restarts grants restarts, and answers agents, other replicas and sondectl about them. It is nil without Kubernetes.
	restarts interface {
		agents.Restarts
		admin.Restarts
	}
	// frozen returns the reason to ignore that nodes and proxies are silent, "" without one; freeze freezes and thaws
	// zones for sondectl. Both are nil without zones.
	frozen func() string
	freeze admin.Freeze
	// events are about pods. They are nil without Kubernetes: then only the log and sondectl get proxies report the
	// problems.
	events *podevents.Events
	// podsAt returns which pods had addresses at some time, nil without Kubernetes.
	podsAt func(ctx context.Context, last map[netip.Addr]time.Time) map[netip.Addr]strict.Pod
	// podState returns what Kubernetes says of a pod by its Dataplane, nil for an unknown one. It is nil without
	// Kubernetes.
	podState func(dataplane string) *adminv1.PodState
	// probesOf returns the texts about the probes of a pod, as podState.
	probesOf func(dataplane string) *adminv1.ProbeSet
	// servingWaits describe the clients other than proxies for which a rotation of the serving CA waits, see
	// rotation.Options.
	servingWaits []func(context.Context, serving.Rotation) []string
}

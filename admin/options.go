package admin

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
)

// Options connect the admin API with the stages that it shows. The functions are called from several goroutines at once,
// and must not keep what they return.
type Options struct {
	// TLS has the serving certificate. It is cloned. Required.
	TLS *tls.Config
	// BearerToken is the admin token, with which all calls are allowed. Required.
	BearerToken string
	// Connections is how many there may be at once. Default MaxConnections.
	Connections int
	// Access knows other tokens, and what their callers may do. Default: the admin token alone is good.
	Access Access

	// View returns the current view, nil before the first. Required.
	View func() *meshview.View
	// Problems of the store. Default: none.
	Problems func() []*adminv1.Problem
	// Streams returns Envoy's ADS streams by proxy, also of proxies without a Dataplane, and the names of the replicas that have not said theirs.
	// Default: none.
	Streams func(context.Context) (streams map[mesh.ID][]*adminv1.Stream, missing []string)
	// Missing returns the names of the replicas that are not heard. Default: none.
	Missing func() []string
	// Agents returns the agents with a session by proxy, also of proxies without a Dataplane. Default: none.
	Agents func() map[mesh.ID]*adminv1.Agent
	// Unresponsive asks the agents of a mesh, of all meshes if that is "", whether they live. It returns the proxies of those that do not answer in time, and the
	// names of the replicas that have not said it of theirs. Default: none.
	Unresponsive func(ctx context.Context, meshName string) (unresponsive map[mesh.ID]bool, missing []string)
	// AgentStates returns the states of all agents by proxy, also of those that wait for a Dataplane. Default: none.
	AgentStates func() map[mesh.ID]*adminv1.AgentState
	// NotServing returns why applications of a proxy cannot take traffic, by the address of the inbound. Default: none.
	NotServing func(proxy mesh.ID) map[netip.AddrPort]string
	// Since says since when something is as it is. Default: of nothing.
	Since Since
	// RefusedListeners returns why the Envoy of a proxy refuses listeners, by their address. Default: none.
	RefusedListeners func(proxy mesh.ID) map[netip.AddrPort]string

	// Resources returns the resources of one kind that the proxy should have, sorted by name, and false if the proxy is
	// unknown. It is not called for the bootstrap. Required.
	Resources func(proxy mesh.ID, kind adminv1.Kind) ([]*anypb.Any, bool)
	// Bootstrap returns the JSON of Envoy's bootstrap. Required.
	Bootstrap func(p *meshview.Proxy) ([]byte, error)

	// Query asks a proxy's Envoy for a view, and passes the parts of the answer to take. Errors are gRPC statuses. Required.
	Query func(ctx context.Context, proxy mesh.ID, view mesh.EnvoyView, take func([]byte) error) error

	// Drain keeps new traffic from a proxy for a reason, or lets it have it again if that is nil, and returns why it was drained before, "" if it was not.
	// Errors are gRPC statuses. Required.
	Drain func(ctx context.Context, p *meshview.Proxy, reason *string) (before string, err error)

	// CAExpires returns when the CA of a mesh expires, zero if it has none yet. Required.
	CAExpires func(meshName string) time.Time
	// Token signs a dataplane token with that validity, and returns when it expires. The mesh is in the view. Errors are
	// mistakes of the caller. Required.
	Token func(s identity.Subject, validity time.Duration) (signed string, expires time.Time, err error)
	// Rotator rotates certificate authorities. Required.
	Rotator Rotator
	// Restarts answers calls about restarts. Default: they fail, as restarts are granted on Kubernetes alone.
	Restarts Restarts
	// Freeze freezes and thaws zones. Default: calls of it fail, as there are zones on Kubernetes alone.
	Freeze Freeze
	// Strict returns what speaks against mode STRICT in each of some meshes, and what it would refuse. It gets what Streams returns. Default: calls of it fail.
	Strict func(ctx context.Context, meshes []*meshview.Mesh, streams map[mesh.ID][]*adminv1.Stream) []*adminv1.StrictMesh
	// Health returns all health checks of the control plane. It may take as long as they do. Default: none.
	Health func(context.Context) []*adminv1.HealthCheck

	// Logger for calls that change something, and for refused tokens. Default: none.
	Logger *slog.Logger
}

// Rotator rotates the certificate authorities of meshes, and the one of the control plane.
type Rotator interface {
	// Rotate starts a rotation, or continues the current one, and returns its progress. With force it does not wait for
	// silent proxies, in this step and the following ones.
	Rotate(ctx context.Context, meshName string, force bool) (*adminv1.Rotation, error)
	// Rotation returns the progress of the rotation, and changes nothing.
	Rotation(ctx context.Context, meshName string) (*adminv1.Rotation, error)
	// RotateServing and ServingRotation are for the CA of the control plane's own certificate. With proceed the rotation does not stop after
	// its first step.
	RotateServing(ctx context.Context, force, proceed bool) (*adminv1.Rotation, error)
	ServingRotation(ctx context.Context) (*adminv1.Rotation, error)
}

// Since says since when something is as it is. A zero time says that it is not known.
type Since interface {
	// Inbound and Outbound are of the health of a proxy's inbound or outbound at an address.
	Inbound(proxy mesh.ID, at netip.AddrPort) time.Time
	Outbound(proxy mesh.ID, at netip.AddrPort) time.Time
	// Without is of a service of whose endpoints none gets traffic.
	Without(service mesh.ID) time.Time
}

// noSince knows of nothing.
type noSince struct{}

func (noSince) Inbound(mesh.ID, netip.AddrPort) time.Time  { return time.Time{} }
func (noSince) Outbound(mesh.ID, netip.AddrPort) time.Time { return time.Time{} }
func (noSince) Without(mesh.ID) time.Time                  { return time.Time{} }

// withDefaults returns o with its defaults. It returns an error if a required option is missing.
func (o Options) withDefaults() (Options, error) {
	required := []struct {
		name string
		set  bool
	}{
		{"TLS", o.TLS != nil}, {"BearerToken", o.BearerToken != ""}, {"View", o.View != nil}, {"Resources", o.Resources != nil},
		{"Bootstrap", o.Bootstrap != nil}, {"Query", o.Query != nil}, {"Drain", o.Drain != nil}, {"CAExpires", o.CAExpires != nil}, {"Token", o.Token != nil}, {"Rotator", o.Rotator != nil},
	}
	for _, option := range required {
		if !option.set {
			return o, fmt.Errorf("make the admin server: option %s is required", option.name)
		}
	}
	o.Connections = cmp.Or(o.Connections, MaxConnections)
	if o.Problems == nil {
		o.Problems = func() []*adminv1.Problem { return nil }
	}
	if o.Streams == nil {
		o.Streams = func(context.Context) (map[mesh.ID][]*adminv1.Stream, []string) { return nil, nil }
	}
	if o.Missing == nil {
		o.Missing = func() []string { return nil }
	}
	if o.Agents == nil {
		o.Agents = func() map[mesh.ID]*adminv1.Agent { return nil }
	}
	if o.Unresponsive == nil {
		o.Unresponsive = func(context.Context, string) (map[mesh.ID]bool, []string) { return nil, nil }
	}
	o.Restarts, o.Freeze, o.Since = cmp.Or[Restarts](o.Restarts, noRestarts{}), cmp.Or[Freeze](o.Freeze, noFreeze{}), cmp.Or[Since](o.Since, noSince{})
	if o.AgentStates == nil {
		o.AgentStates = func() map[mesh.ID]*adminv1.AgentState { return nil }
	}
	if o.NotServing == nil {
		o.NotServing = func(mesh.ID) map[netip.AddrPort]string { return nil }
	}
	if o.RefusedListeners == nil {
		o.RefusedListeners = func(mesh.ID) map[netip.AddrPort]string { return nil }
	}
	if o.Health == nil {
		o.Health = func(context.Context) []*adminv1.HealthCheck { return nil }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

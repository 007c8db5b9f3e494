package admin

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
)

// Options joins the admin API with the stages that it tells about. Functions are called from many goroutines at once, and
// give away what they return.
type Options struct {
	// TLS has the serving certificate. It is cloned. Required.
	TLS *tls.Config
	// BearerToken is what each call must carry. Required.
	BearerToken string

	// View returns the last view that is in effect, nil before the first. Required.
	View func() *meshview.View
	// Problems of the store. Default: none.
	Problems func() []*adminv1.Problem
	// Streams are Envoy's ADS streams by proxy, those of proxies without a Dataplane too. Default: none.
	Streams func() map[mesh.ID][]*adminv1.Stream
	// Agents with a session, by proxy, those without a Dataplane too. Default: none.
	Agents func() map[mesh.ID]*adminv1.Agent

	// Resources returns what the proxy should have of a kind, sorted by name, and false if it does not know the
	// proxy. It is never asked for the bootstrap. Required.
	Resources func(proxy mesh.ID, kind adminv1.Kind) ([]*anypb.Any, bool)
	// Bootstrap returns the JSON of Envoy's bootstrap. Required.
	Bootstrap func(m *meshview.Mesh, p *meshview.Proxy) ([]byte, error)

	// CAExpires returns the end of the signing certificate of a mesh's authority. Zero: it has none yet. Required.
	CAExpires func(meshName string) time.Time
	// Token signs a dataplane token that lives so long. The mesh is in the view. Errors are the caller's mistake. Required.
	Token func(t identity.Token, life time.Duration) (string, error)
	// Rotator rotates certificate authorities. Required.
	Rotator Rotator

	// Logger of mutating calls and refused tokens. Default: none.
	Logger *slog.Logger
}

// Rotator rotates the certificate authorities of meshes.
type Rotator interface {
	// Rotate starts a rotation, or goes on with the one that is under way, and says how far it is. With force silent
	// proxies are not waited for, in this step and those that follow.
	Rotate(ctx context.Context, meshName string, force bool) (*adminv1.Rotation, error)
	// Rotation says how far the rotation is, and changes nothing.
	Rotation(ctx context.Context, meshName string) (*adminv1.Rotation, error)
}

// withDefaults returns a copy of o that is complete, or what is missing.
func (o Options) withDefaults() (Options, error) {
	required := []struct {
		name string
		set  bool
	}{
		{"TLS", o.TLS != nil}, {"BearerToken", o.BearerToken != ""}, {"View", o.View != nil}, {"Resources", o.Resources != nil},
		{"Bootstrap", o.Bootstrap != nil}, {"CAExpires", o.CAExpires != nil}, {"Token", o.Token != nil}, {"Rotator", o.Rotator != nil},
	}
	for _, option := range required {
		if !option.set {
			return o, fmt.Errorf("make the admin server: option %s is required", option.name)
		}
	}
	if o.Problems == nil {
		o.Problems = func() []*adminv1.Problem { return nil }
	}
	if o.Streams == nil {
		o.Streams = func() map[mesh.ID][]*adminv1.Stream { return nil }
	}
	if o.Agents == nil {
		o.Agents = func() map[mesh.ID]*adminv1.Agent { return nil }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

package admin

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sonde-mesh/sonde/admin/lists"
	"github.com/sonde-mesh/sonde/admin/lookup"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
)

// Options connect the admin API with the stages whose state it shows. The functions must be safe for concurrent use,
// and must not keep or change their results.
type Options struct {
	// TLS has the serving certificate. It is cloned. Required.
	TLS *tls.Config
	// BearerToken is the admin token, which allows all calls. Required.
	BearerToken string
	// Connections is the maximum of concurrent connections. Default MaxConnections.
	Connections int
	// Access authorizes other tokens. Default: only the admin token is valid.
	Access Access

	// Packages that answer most calls. Lists, Rotations and Strict are required. Without Restarts and Freeze, their
	// calls fail, as on a control plane without Kubernetes.
	Lists     *lists.Answers
	Rotations Rotations
	Strict    Strict
	Restarts  Restarts
	Freeze    Freeze

	// View returns the current view. Required.
	View lookup.View
	// Resources returns the sorted resources of one kind for the proxy, and false if the proxy is unknown. It is not
	// called for the bootstrap. Required.
	Resources func(proxy mesh.ID, kind adminv1.Kind) ([]*anypb.Any, bool)
	// Bootstrap returns the JSON of Envoy's bootstrap. Required.
	Bootstrap func(p *meshview.Proxy) ([]byte, error)

	// Query sends a query to a proxy's Envoy, and passes the parts of the answer to take. Errors are gRPC statuses.
	// Required.
	Query func(ctx context.Context, proxy mesh.ID, view mesh.EnvoyView, take func([]byte) error) error

	// Drain stops new traffic to a proxy for a reason; a nil reason ends the drain. It returns the previous reason, "" if
	// the proxy was not drained. Errors are gRPC statuses. Required.
	Drain func(ctx context.Context, p *meshview.Proxy, reason *string) (before string, err error)

	// Token signs a dataplane token with that validity, and returns when the token expires. The mesh must be in the
	// view. Errors are mistakes of the caller. Required.
	Token func(s identity.Subject, validity time.Duration) (signed string, expires time.Time, err error)
	// Health has the checks for GetHealth. Required.
	Health Health

	// Logger for calls that change something, and for rejected tokens. Default: no logs.
	Logger *slog.Logger
}

// withDefaults returns o with its defaults. It returns an error if a required option is missing.
func (o Options) withDefaults() (Options, error) {
	required := []struct {
		name string
		set  bool
	}{
		{"TLS", o.TLS != nil}, {"BearerToken", o.BearerToken != ""},
		{"Lists", o.Lists != nil}, {"Rotations", o.Rotations != nil}, {"Strict", o.Strict != nil},
		{"View", o.View != nil}, {"Resources", o.Resources != nil}, {"Bootstrap", o.Bootstrap != nil},
		{"Query", o.Query != nil}, {"Drain", o.Drain != nil}, {"Token", o.Token != nil}, {"Health", o.Health != nil},
	}
	for _, option := range required {
		if !option.set {
			return o, fmt.Errorf("make the admin server: option %s is required", option.name)
		}
	}
	o.Connections = cmp.Or(o.Connections, MaxConnections)
	o.Restarts, o.Freeze = cmp.Or[Restarts](o.Restarts, noRestarts{}), cmp.Or[Freeze](o.Freeze, noFreeze{})
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return o, nil
}

package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/cluster"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/reach"
	"github.com/sonde-mesh/sonde/internal/settings"
)

// notWith is the error for two flags that both locate the control plane.
func (c *cli) notWith(ofCluster, direct string) error {
	return &mesh.FieldError{
		Field: "--" + ofCluster, Value: c.flags.Lookup(ofCluster).Value.String(),
		Allowed: fmt.Sprintf("must not be set with %s: use either an address or a cluster", c.placeOf(direct)),
	}
}

// clusterAlone is kubernetes for a command that does not support --address.
func (c *cli) clusterAlone() (*cluster.Cluster, error) {
	if direct := c.addressGiven(); direct != "" {
		return nil, &mesh.FieldError{Field: c.placeOf(direct), Allowed: "must not be set: this command only finds the control plane in the kubeconfig's cluster"}
	}
	in, err := cluster.Open(c.cluster)
	if errors.Is(err, cluster.ErrNoKubeconfig) {
		return nil, settings.Usagef("%w: set --%s", err, cluster.FlagKubeconfig)
	}
	return in, err //nolint:wrapcheck // it is for users
}

// callInCluster is call for the control plane in the kubeconfig's cluster.
func (c *cli) callInCluster(ctx context.Context, work func(context.Context, adminv1.AdminServiceClient) error) error {
	to, err := c.forwarded(ctx)
	if err != nil {
		return err
	}
	return c.callAt(ctx, to, callTimeout, work)
}

// beside returns the call of a command that also reads objects from the kubeconfig's cluster. If address flags are set,
// the cluster flags only apply to the objects. It returns an error for invalid flags before anything is read.
func (c *cli) beside() (
	call func(context.Context, func(context.Context, adminv1.AdminServiceClient) error) error, err error,
) {
	if err := c.refuseContexts(); err != nil {
		return nil, err
	}
	direct := c.addressGiven()
	switch {
	case direct == "":
		return c.call, nil
	case c.given(cluster.FlagNamespace):
		return nil, c.notWith(cluster.FlagNamespace, direct)
	}
	to, err := c.direct()
	return func(ctx context.Context, work func(context.Context, adminv1.AdminServiceClient) error) error {
		return c.callAt(ctx, to, callTimeout, work)
	}, err
}

// addressGiven returns the first set flag for the control plane's address, "" without one.
func (c *cli) addressGiven() string {
	return c.firstGiven(flagAddress, flagCACert, flagTokenFile)
}

// clusterGiven returns the first set flag for the control plane's cluster, "" without one.
func (c *cli) clusterGiven() string {
	return c.firstGiven(cluster.FlagKubeconfig, cluster.FlagContext, cluster.FlagNamespace)
}

// firstGiven returns the first of these flags that the command line or a variable sets, "" without one.
func (c *cli) firstGiven(flags ...string) string {
	for _, flag := range flags {
		if c.given(flag) {
			return flag
		}
	}
	return ""
}

// placeOf names a flag for users, with the environment variable if that sets it.
func (c *cli) placeOf(flag string) string {
	if variable := settings.Variable(envPrefix, c.flags.Lookup(flag)); os.Getenv(variable) != "" {
		return fmt.Sprintf("--%s (%s)", flag, variable)
	}
	return "--" + flag
}

// forwarded returns the control plane in the kubeconfig's cluster. Later calls, such as polls of --watch, use the same
// session until it fails. Each call reads the CAs again, since it opens a new connection.
func (c *cli) forwarded(ctx context.Context) (*endpoint, error) {
	if c.session != nil && c.session.Ended() {
		c.closeSession()
	}
	if c.session == nil {
		in, err := c.kubernetes()
		if err != nil {
			return nil, err
		}
		if c.session, err = in.Connect(ctx); err != nil {
			return nil, err
		}
		if s := c.session; s.NotReady != "" {
			_, _ = fmt.Fprintf(c.stderr, "sondectl: no Ready replica of the control plane responds, using %s, whose answers may be old: %s\n", printer.OneLine(s.Pod), printer.OneLine(s.NotReady))
		}
	}
	roots, err := c.session.Roots(ctx)
	if err != nil {
		return nil, err
	}
	return c.endpointOf(c.session, roots), nil
}

// kubernetes returns the cluster that flags or the kubeconfig select.
func (c *cli) kubernetes() (*cluster.Cluster, error) {
	in, err := cluster.Open(c.cluster)
	if errors.Is(err, cluster.ErrNoKubeconfig) {
		return nil, settings.Usagef("no control plane is set, and %w: set --%s, --%s and --%s, or their variables", err, flagAddress, flagCACert, flagTokenFile)
	}
	return in, err
}

// endpointOf returns the control plane behind a session, for one connection.
func (c *cli) endpointOf(s *cluster.Session, roots *x509.CertPool) *endpoint {
	return &endpoint{
		address: s.Address, roots: roots,
		watch: &reach.Watch{
			Service: reach.Admin, Address: fmt.Sprintf("pod %s in namespace %s", s.Pod, s.Namespace),
			CA: "ConfigMap " + mesh.ServingCAConfigMap,
		},
		authorize: []grpc.DialOption{
			grpc.WithUnaryInterceptor(func(
				ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
				o ...grpc.CallOption,
			) error {
				ctx, err := withToken(ctx, s, method)
				if err != nil {
					return err
				}
				return invoke(ctx, method, request, reply, conn, o...)
			}),
			grpc.WithStreamInterceptor(func(
				ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer,
				o ...grpc.CallOption,
			) (grpc.ClientStream, error) {
				ctx, err := withToken(ctx, s, method)
				if err != nil {
					return nil, err
				}
				return open(ctx, desc, conn, method, o...)
			}),
		},
		failed: func(err error) error {
			if lost := s.Lost(); lost != nil {
				err = lost
			}
			c.closeSession() // the next call selects a Ready replica again
			return err
		},
	}
}

// withToken adds the token for a method.
func withToken(ctx context.Context, s *cluster.Session, method string) (context.Context, error) {
	need, ok := adminv1.RightOf(method)
	if !ok {
		return nil, fmt.Errorf("%s: is not a method for sondectl", method)
	}
	token, err := s.Token(ctx, need)
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what was tried
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), nil
}

func (c *cli) closeSession() {
	if c.session != nil {
		c.session.Close()
		c.session = nil
	}
}

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

// notWith is the error of two flags of which each says where the control plane is.
func (c *cli) notWith(ofCluster, direct string) error {
	return &mesh.FieldError{
		Field: "--" + ofCluster, Value: c.flags.Lookup(ofCluster).Value.String(),
		Allowed: fmt.Sprintf("must not be given with %s: the control plane is either at an address or in a cluster", c.placeOf(direct)),
	}
}

// clusterAlone is kubernetes for a command that has no use for an address.
func (c *cli) clusterAlone() (*cluster.Cluster, error) {
	if direct := c.addressGiven(); direct != "" {
		return nil, &mesh.FieldError{Field: c.placeOf(direct), Allowed: "must not be given: this command finds the control plane in the cluster of the kubeconfig"}
	}
	in, err := cluster.Open(c.cluster)
	if errors.Is(err, cluster.ErrNoKubeconfig) {
		return nil, settings.Usagef("%w: name one with --%s", err, cluster.FlagKubeconfig)
	}
	return in, err //nolint:wrapcheck // it is for users
}

// callInCluster is call to the control plane in the cluster of the kubeconfig.
func (c *cli) callInCluster(ctx context.Context, work func(context.Context, adminv1.AdminServiceClient) error) error {
	to, err := c.forwarded(ctx)
	if err != nil {
		return err
	}
	return c.callAt(ctx, to, callTimeout, work)
}

// beside returns the call of a command that reads objects by the kubeconfig in any case: its flags do not say that the control plane is in that cluster
// where others say where it is. What is wrong with those is an error before anything is read.
func (c *cli) beside() (call func(context.Context, func(context.Context, adminv1.AdminServiceClient) error) error, err error) {
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

// addressGiven returns the first flag that says at which address the control plane is, "" if none does.
func (c *cli) addressGiven() string {
	return c.firstGiven(flagAddress, flagCACert, flagTokenFile)
}

// clusterGiven returns the first flag that says in which cluster the control plane is, "" if none does.
func (c *cli) clusterGiven() string {
	return c.firstGiven(cluster.FlagKubeconfig, cluster.FlagContext, cluster.FlagNamespace)
}

// firstGiven returns the first of these flags that the command line or a variable sets, "" if none is.
func (c *cli) firstGiven(flags ...string) string {
	for _, flag := range flags {
		if c.given(flag) {
			return flag
		}
	}
	return ""
}

// placeOf returns a flag as users see it that is set: with its variable, if there is one.
func (c *cli) placeOf(flag string) string {
	if variable := settings.Variable(envPrefix, c.flags.Lookup(flag)); os.Getenv(variable) != "" {
		return fmt.Sprintf("--%s (%s)", flag, variable)
	}
	return "--" + flag
}

// forwarded returns the control plane in the cluster of the kubeconfig. The session is kept for further calls, such as those of --watch, until it fails
// or the program ends; its CAs are read for each, which has a connection of its own.
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
			_, _ = fmt.Fprintf(c.stderr, "sondectl: no replica of the control plane that is Ready answers: %s does, and what it says may be old: %s\n", printer.OneLine(s.Pod), printer.OneLine(s.NotReady))
		}
	}
	roots, err := c.session.Roots(ctx)
	if err != nil {
		return nil, err
	}
	return c.endpointOf(c.session, roots), nil
}

// kubernetes returns the cluster that flags or the kubeconfig say.
func (c *cli) kubernetes() (*cluster.Cluster, error) {
	in, err := cluster.Open(c.cluster)
	if errors.Is(err, cluster.ErrNoKubeconfig) {
		return nil, settings.Usagef("no control plane is named, and %w: give --%s, --%s and --%s, as flags or as variables", err, flagAddress, flagCACert, flagTokenFile)
	}
	return in, err
}

// endpointOf returns the control plane of a session, for one connection.
func (c *cli) endpointOf(s *cluster.Session, roots *x509.CertPool) *endpoint {
	return &endpoint{
		address: s.Address, roots: roots,
		watch: &reach.Watch{
			Service: reach.Admin, Address: fmt.Sprintf("pod %s in namespace %s", s.Pod, s.Namespace), CA: "ConfigMap " + mesh.ServingCAConfigMap,
		},
		authorize: []grpc.DialOption{
			grpc.WithUnaryInterceptor(func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
				ctx, err := withToken(ctx, s, method)
				if err != nil {
					return err
				}
				return invoke(ctx, method, request, reply, conn, o...)
			}),
			grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
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
			c.closeSession() // the next call finds a replica that is Ready then
			return err
		},
	}
}

// withToken adds the token that a method needs.
func withToken(ctx context.Context, s *cluster.Session, method string) (context.Context, error) {
	need, known := adminv1.RightOf(method)
	if !known {
		return nil, fmt.Errorf("%s: there is no right to call it with", method)
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

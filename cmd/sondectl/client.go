package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/internal/reach"
	"github.com/sonde-mesh/sonde/internal/settings"
)

const (
	callTimeout = 10 * time.Second
	dialTimeout = 5 * time.Second
	// maxAnswerBytes exceeds the size of the longest list.
	maxAnswerBytes = 64 << 20
	maxSecretBytes = 64 << 10
)

// call calls the control plane, with a deadline. Its errors are for users.
func (c *cli) call(ctx context.Context, work func(context.Context, adminv1.AdminServiceClient) error) error {
	return c.callWithin(ctx, callTimeout, work)
}

// ask calls one method of the control plane, with a deadline. Its errors are for users.
func ask[Request, Answer any](
	ctx context.Context, c *cli,
	method func(adminv1.AdminServiceClient, context.Context, Request, ...grpc.CallOption) (Answer, error),
	request Request,
) (answer Answer, err error) {
	err = c.call(ctx, func(ctx context.Context, api adminv1.AdminServiceClient) (err error) {
		answer, err = method(api, ctx, request)
		return err
	})
	return answer, err
}

// callWithin is call with a longer deadline.
func (c *cli) callWithin(
	ctx context.Context, limit time.Duration, work func(context.Context, adminv1.AdminServiceClient) error,
) error {
	to, err := c.endpoint(ctx)
	if err != nil {
		return err
	}
	return c.callAt(ctx, to, limit, work)
}

// callAt is call for a known endpoint.
func (c *cli) callAt(
	ctx context.Context, to *endpoint, limit time.Duration, work func(context.Context, adminv1.AdminServiceClient) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	dial := c.dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	conn, err := grpc.NewClient("passthrough:///"+to.address, append(to.authorize,
		grpc.WithTransportCredentials(watchedTLS{credentials.NewTLS(&tls.Config{
			RootCAs: to.roots, ServerName: mesh.ServingName, MinVersion: tls.VersionTLS13,
		}), to.watch}),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			conn, err := dial(ctx, "tcp", address)
			to.watch.Dialed(err)
			return conn, err
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry())...)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", to.address, err)
	}
	err = explainError(to.watch, work(ctx, adminv1.NewAdminServiceClient(conn)))
	if to.failed != nil && exit.Code(err) == exit.Unreachable {
		err = to.failed(err)
	}
	return errors.Join(err, conn.Close())
}

// endpoint is a reachable control plane.
type endpoint struct {
	address string // host:port
	roots   *x509.CertPool
	// watch records connection errors.
	watch *reach.Watch
	// authorize has the call options that send a token.
	authorize []grpc.DialOption
	// failed adds details to the error of a call without a response. It may be nil.
	failed func(error) error
}

// endpoint returns the control plane that flags or variables name, otherwise the one in the kubeconfig's cluster.
func (c *cli) endpoint(ctx context.Context) (*endpoint, error) {
	direct, ofCluster := c.addressGiven(), c.clusterGiven()
	if err := c.refuseContexts(); err != nil {
		return nil, err
	}
	switch {
	case direct == "":
		return c.forwarded(ctx)
	case ofCluster != "":
		return nil, c.notWith(ofCluster, direct)
	}
	return c.direct()
}

// direct returns the control plane at --address.
func (c *cli) direct() (*endpoint, error) {
	roots, err := readRoots(flagCACert, c.caFile)
	if err != nil {
		return nil, err
	}
	token, err := readSecret(flagTokenFile, c.tokenFile)
	if err != nil {
		return nil, err
	}
	bearerToken := strings.TrimSpace(string(token))
	if strings.ContainsFunc(bearerToken, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, &mesh.FieldError{Field: "--" + flagTokenFile, Value: c.tokenFile, Err: errors.New("must contain only the admin token, in one line")}
	}
	return &endpoint{
		address: c.address, roots: roots, watch: &reach.Watch{Service: reach.Admin, Address: c.address},
		authorize: []grpc.DialOption{grpc.WithPerRPCCredentials(bearer(bearerToken))},
	}, nil
}

// explainError turns the error of a call into one for users, with its exit code.
func explainError(watch *reach.Watch, err error) error {
	explained, ok := errors.AsType[*reach.Error](watch.Explain(err))
	switch {
	case !ok:
		return err
	case explained.Kind == reach.Unreachable:
		return &exit.Error{Code: exit.Unreachable, Err: explained}
	case explained.Kind == reach.Other && status.Code(explained) == codes.Unavailable:
		err := fmt.Errorf("the control plane at %s is not available: %w", watch.Address, explained)
		return &exit.Error{Code: exit.Unreachable, Err: err}
	}
	return explained
}

// watchedTLS are TLS credentials that record why a handshake failed.
type watchedTLS struct {
	credentials.TransportCredentials
	watch *reach.Watch
}

// ClientHandshake implements credentials.TransportCredentials.
func (t watchedTLS) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := t.TransportCredentials.ClientHandshake(ctx, authority, raw)
	t.watch.Handshaken(err)
	return conn, info, err
}

// Clone implements credentials.TransportCredentials. gRPC uses a clone, which must record its errors in the same place.
func (t watchedTLS) Clone() credentials.TransportCredentials {
	return watchedTLS{t.TransportCredentials.Clone(), t.watch}
}

// bearer sends a token, only over TLS.
type bearer string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b bearer) RequireTransportSecurity() bool { return true }

func readRoots(flag, path string) (*x509.CertPool, error) {
	pem, err := readSecret(flag, path)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, &mesh.FieldError{Field: "--" + flag, Err: fmt.Errorf("no certificate in %s", path)}
	}
	return roots, nil
}

// readSecret reads the small file named by a flag.
func readSecret(flag, path string) ([]byte, error) {
	if path == "" {
		return nil, settings.Usagef("--%s is required to call the control plane: set the flag or its variable", flag)
	}
	r, err := os.Open(path)
	if err != nil {
		return nil, &mesh.FieldError{Field: "--" + flag, Err: err}
	}
	defer r.Close() //nolint:errcheck // nothing was written
	data, err := io.ReadAll(io.LimitReader(r, maxSecretBytes+1))
	if err != nil {
		return nil, &mesh.FieldError{Field: "--" + flag, Err: err}
	}
	if len(data) > maxSecretBytes || len(data) == 0 {
		err := fmt.Errorf("%s has %d bytes: must be 1 to %d", path, len(data), maxSecretBytes)
		return nil, &mesh.FieldError{Field: "--" + flag, Err: err}
	}
	return data, nil
}

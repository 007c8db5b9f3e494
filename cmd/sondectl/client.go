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
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

const (
	callTimeout = 10 * time.Second
	dialTimeout = 5 * time.Second
	// maxAnswerBytes is more than the longest list of the control plane takes.
	maxAnswerBytes = 64 << 20
	maxSecretBytes = 64 << 10
)

// call makes a call to the control plane, with a deadline. Its errors are for users.
func (c *cli) call(ctx context.Context, work func(context.Context, adminv1.AdminServiceClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	roots, err := readRoots(c.caFile)
	if err != nil {
		return err
	}
	token, err := readSecret("--token-file", c.tokenFile)
	if err != nil {
		return err
	}
	link := &watchedTLS{TransportCredentials: credentials.NewTLS(&tls.Config{
		RootCAs: roots, ServerName: mesh.ServingName, MinVersion: tls.VersionTLS13,
	})}
	conn, err := grpc.NewClient("passthrough:///"+c.address,
		grpc.WithTransportCredentials(link),
		grpc.WithContextDialer(link.dial),
		grpc.WithPerRPCCredentials(bearer(strings.TrimSpace(string(token)))),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry())
	if err != nil {
		return fmt.Errorf("connect to %s: %w", c.address, err)
	}
	return errors.Join(c.explainError(work(ctx, adminv1.NewAdminServiceClient(conn)), link), conn.Close())
}

// explainError turns the error of a call into one for users, with its exit code.
func (c *cli) explainError(err error, l *watchedTLS) error {
	if err == nil {
		return nil
	}
	refused, mistrusted := l.errors()
	state, ok := status.FromError(err)
	switch {
	case !ok:
		return err
	case mistrusted != nil:
		return fmt.Errorf("the control plane at %s is not the one that --ca-cert-file names: %w", c.address, mistrusted)
	case refused != nil:
		return &exitError{exitUnreachable, fmt.Errorf("no control plane at %s: %w", c.address, refused)}
	case state.Code() == codes.DeadlineExceeded:
		return &exitError{exitUnreachable, fmt.Errorf("the control plane at %s did not answer within %s", c.address, callTimeout)}
	case state.Code() == codes.Unavailable:
		return &exitError{exitUnreachable, fmt.Errorf("the control plane at %s is not available: %s", c.address, state.Message())}
	default:
		return errors.New(state.Message())
	}
}

// watchedTLS are TLS credentials that remember why connecting failed: the server is down, or its certificate is not
// trusted. gRPC only returns a text.
type watchedTLS struct {
	credentials.TransportCredentials
	mu                  sync.Mutex
	refused, mistrusted error
}

func (l *watchedTLS) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", address)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = err
	return conn, err
}

// ClientHandshake implements credentials.TransportCredentials.
func (l *watchedTLS) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := l.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if verification, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.mistrusted = verification.Err
	}
	return conn, info, err
}

// Clone implements credentials.TransportCredentials. gRPC uses a clone, which has to record its errors here.
func (l *watchedTLS) Clone() credentials.TransportCredentials { return l }

func (l *watchedTLS) errors() (refused, mistrusted error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused, l.mistrusted
}

// bearer sends the admin token, only over TLS.
type bearer string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b bearer) RequireTransportSecurity() bool { return true }

func readRoots(path string) (*x509.CertPool, error) {
	pem, err := readSecret("--ca-cert-file", path)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--ca-cert-file: there is no certificate in %s", path)
	}
	return roots, nil
}

// readSecret reads the small file that a flag names.
func readSecret(flag, path string) ([]byte, error) {
	if path == "" {
		return nil, usagef("%s is needed to ask the control plane", flag)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	defer file.Close() //nolint:errcheck // nothing was written
	data, err := io.ReadAll(io.LimitReader(file, maxSecretBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	if len(data) > maxSecretBytes || len(data) == 0 {
		return nil, fmt.Errorf("%s: %s holds %d bytes: must be 1 to %d", flag, path, len(data), maxSecretBytes)
	}
	return data, nil
}

package featuretest

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
)

// window is the size of the flow-control windows of a stream and of a connection. It is fixed, so that the server
// notices a client that does not read.
const window = 64 << 10

// limit bounds a stream that a test opens itself: the test waits only for messages that arrive at once.
const limit = time.Minute

// Dial connects to ADS, whatever the address.
func (f *Feature) Dial(ctx context.Context, _ string) (net.Conn, error) {
	return f.network.DialFrom(client)(ctx, "tcp", address)
}

// TLS returns the client configuration of a proxy: with the certificate of owner, or without a certificate if owner is
// "".
func (f *Feature) TLS(owner mesh.ID) (*tls.Config, error) {
	config, err := sondecp.TrustOnly(f.plane.serving)
	if err != nil {
		return nil, err
	}
	if owner != "" {
		certificate, err := sondecp.Issue(f.plane.authority, f.subject(owner))
		if err != nil {
			return nil, fmt.Errorf("certificate of %s: %w", owner, err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config, nil
}

// subject returns the subject that the certificate of a proxy must identify.
func (f *Feature) subject(owner mesh.ID) identity.Subject {
	if _, p := f.plane.Builder.View().Proxy(owner); p != nil {
		return identity.SubjectOf(p.Dataplane)
	}
	meshName, dataplane := mesh.SplitID(owner)
	return identity.Subject{Mesh: meshName, Dataplane: dataplane, Path: mesh.WorkloadPath("web")}
}

// dial connects with the certificate of owner, or without one if owner is "".
func (f *Feature) dial(owner mesh.ID) (*grpc.ClientConn, error) {
	config, err := f.TLS(owner)
	if err != nil {
		return nil, err
	}
	return f.dialAs(config)
}

func (f *Feature) dialAs(config *tls.Config) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address, grpc.WithContextDialer(f.Dial), grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window), grpc.WithNoProxy())
}

// Open opens a stream with the certificate of owner, or without one if owner is empty. The test decides what to send.
// The stream ends when no test would wait longer.
func (f *Feature) Open(owner mesh.ID, p envoysim.Protocol) envoysim.Wire {
	f.t.Helper()
	config, err := f.TLS(owner)
	if err != nil {
		f.t.Fatal(err)
	}
	w, err := f.OpenAs(config, p)
	if err != nil {
		f.t.Fatalf("failed to open a stream with the certificate of %q: %v", owner, err)
	}
	return w
}

// OpenAs is like Open with another TLS configuration. It returns an error if the connection is rejected or has no
// stream.
func (f *Feature) OpenAs(config *tls.Config, p envoysim.Protocol) (envoysim.Wire, error) {
	f.t.Helper()
	conn, err := f.dialAs(config)
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(f.t.Context(), limit)
	f.t.Cleanup(func() {
		cancel()
		_ = conn.Close() // the test is over
	})
	return envoysim.OpenWire(ctx, p, conn)
}

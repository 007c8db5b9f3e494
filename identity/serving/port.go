package serving

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"golang.org/x/net/http2"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
)

// Port checks the port of this process on which agents join, with a certificate of this CA. All fields are required.
type Port struct {
	Certificate *Certificate
	// Address of the listener.
	Address net.Addr
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)
	// Own returns the addresses of this host.
	Own func() ([]net.Addr, error)
}

// Check connects to the port over each address family that agents may use.
func (p Port) Check(ctx context.Context) error {
	at, err := p.reachedAt()
	if err != nil {
		return err
	}
	for _, address := range at {
		if err := p.connect(ctx, address); err != nil {
			return err
		}
	}
	return nil
}

// reachedAt returns the addresses for connections to the listener: one for each address family over which other hosts
// can reach this host, or the listener's own address.
func (p Port) reachedAt() ([]string, error) {
	at, ok := p.Address.(*net.TCPAddr)
	if !ok || !at.IP.IsUnspecified() || at.IP.To4() != nil {
		return []string{p.Address.String()}, nil
	}
	addresses, err := p.Own()
	if err != nil {
		return nil, fmt.Errorf("find addresses of this host: %w", err)
	}
	var four, six bool
	for _, a := range addresses {
		if prefix, ok := a.(*net.IPNet); ok && prefix.IP.IsGlobalUnicast() {
			four, six = four || prefix.IP.To4() != nil, six || prefix.IP.To4() == nil
		}
	}
	var all []string
	port := strconv.Itoa(at.Port)
	if four {
		all = append(all, net.JoinHostPort("127.0.0.1", port))
	}
	if six {
		all = append(all, net.JoinHostPort("::1", port))
	}
	if len(all) == 0 {
		all = []string{p.Address.String()}
	}
	return all, nil
}

// connect opens a connection as an agent without a certificate does, and waits for the first frame of the server.
func (p Port) connect(ctx context.Context, address string) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.Certificate.CA())
	raw, err := p.Dial(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("connect as an agent: %w", err)
	}
	conn := tls.Client(raw, &tls.Config{
		RootCAs: roots, ServerName: mesh.ServingName, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		// agents use their own clocks
		Time: func() time.Time { return ca.TimeFor(p.Certificate.o.Now(), p.Certificate.Signing()) },
	})
	defer func() { _ = conn.Close() }()
	if err := conn.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("connect as an agent: %w", err)
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return fmt.Errorf("connect as an agent: %w", err)
		}
	}
	frame, err := http2.NewFramer(io.Discard, conn).ReadFrame()
	if err != nil {
		return fmt.Errorf("wait for the first frame of HTTP/2 as an agent: %w", err)
	}
	if _, ok := frame.(*http2.SettingsFrame); !ok {
		return fmt.Errorf("the first frame of HTTP/2 is %s, must be SETTINGS", frame.Header())
	}
	return nil
}

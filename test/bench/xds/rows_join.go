package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
)

// agentsPerNode is how many agents have one address.
const agentsPerNode = 250

// join is row j: all agents join at once, each with a token, those of a node from one address. The other rows get certificates from the same CA in memory, because each
// join writes to disk.
func (s *session) join(ctx context.Context, row string) error {
	var l landing
	cpu, err := s.cost(ctx, func() error {
		return s.clients.order(order{Do: doJoin, Address: s.server.address, Proxies: s.topology.Proxies}, &l)
	})
	if err != nil {
		return err
	}
	s.note(row, figureWall, l.Last)
	s.note(row, figureCPU, cpu/float64(s.topology.Proxies))
	return nil
}

func (f *fleet) join(ctx context.Context, o order) (landing, error) {
	tokens := make([]string, o.Proxies)
	for i := range tokens {
		var err error
		tokens[i], _, err = f.identity.Tokens.Issue(subject(i), time.Hour)
		if err != nil {
			return landing{}, err
		}
	}
	var m meeting
	m.begin(o.Proxies)
	group, ctx := errgroup.WithContext(ctx)
	for i, token := range tokens {
		group.Go(func() error {
			if err := f.joinOne(ctx, i, token, o.Address); err != nil {
				return fmt.Errorf("join %s: %w", proxyName(i), err)
			}
			m.arrive()
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return landing{}, err
	}
	return m.wait(f)
}

func (f *fleet) joinOne(ctx context.Context, i int, token, address string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return err
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, 0, byte(1+i/agentsPerNode))}}
	config, err := sondecp.TrustOnly(f.identity.Serving)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithNoProxy(),
		grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing more is sent
	_, err = agentv1.NewAgentServiceClient(conn).Join(ctx, &agentv1.JoinRequest{
		Mesh: mesh.DefaultMesh, Name: proxyName(i), Token: token, Csr: csr, ControlPlaneAddress: address,
	})
	return err
}

package xds

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
	"github.com/sonde-mesh/sonde/test/bench/arrivals"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
)

// agentsPerNode is the number of agents that share an address.
const agentsPerNode = 250

// join has all agents join at once, each with a token, and one address per node. It returns when each received its
// certificate.
func (s *session) join() []time.Duration {
	s.StopTimer()
	tokens := make([]string, s.topology.proxies)
	for i := range tokens {
		var err error
		tokens[i], _, err = s.identity.Tokens.Issue(subject(i), time.Hour)
		s.must(err)
	}
	s.StartTimer()
	joined := arrivals.New(0, len(tokens), "")
	group, ctx := errgroup.WithContext(s.Context())
	for i, token := range tokens {
		group.Go(func() error {
			if err := s.joinOne(ctx, i, token); err != nil {
				return fmt.Errorf("join %s: %w", proxyName(i), err)
			}
			joined.Arrive(i)
			return nil
		})
	}
	s.must(group.Wait())
	times, err := joined.Wait(s.Context())
	s.must(err)
	return times
}

func (s *session) joinOne(ctx context.Context, i int, token string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return err
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, 0, byte(1+i/agentsPerNode))}}
	config, err := sondecp.TrustOnly(s.identity.Serving)
	if err != nil {
		return err
	}
	address := s.fleet.address
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithNoProxy(),
		grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // no more calls use it
	_, err = agentv1.NewAgentServiceClient(conn).Join(ctx, &agentv1.JoinRequest{
		Mesh: mesh.DefaultMesh, Name: proxyName(i), Token: token, Csr: csr, ControlPlaneAddress: address,
	})
	return err
}

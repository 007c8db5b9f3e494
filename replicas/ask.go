package replicas

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/facts"
)

const (
	// listTimeout bounds a listing by one replica, since a user waits for it.
	listTimeout = 3 * time.Second
	// duplicateTimeout is longer than an agent may take to show that it is alive.
	duplicateTimeout = 5 * time.Second
)

// client returns the client for a replica.
func (p *Peers) client(replica string) (peerv1.PeerServiceClient, error) {
	if p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if s := p.senders[replica]; s != nil && s.connection != nil {
			return peerv1.NewPeerServiceClient(s.connection), nil
		}
	}
	return nil, status.Errorf(codes.Unavailable, "not connected to replica %s of the control plane", replica)
}

// Query sends a query to the Envoy of a proxy whose session is with that replica, see Local.Query.
func (p *Peers) Query(
	ctx context.Context, replica string, proxy mesh.ID, view mesh.EnvoyView, take func([]byte) error,
) error {
	client, err := p.client(replica)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.Query(ctx, &peerv1.QueryRequest{Proxy: proxy, View: string(view)})
	if err != nil {
		return err //nolint:wrapcheck // a gRPC status
	}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err //nolint:wrapcheck // a gRPC status
		}
		if err := take(part.GetData()); err != nil {
			return err
		}
	}
}

// CheckDuplicate asks a replica, see Local.CheckDuplicate. If the replica does not answer, no agent is rejected.
func (p *Peers) CheckDuplicate(
	ctx context.Context, replica string, proxy mesh.ID, process, address string,
) (refusal string) {
	client, err := p.client(replica)
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, duplicateTimeout)
	defer cancel()
	answer, err := client.CheckDuplicate(ctx, &peerv1.CheckDuplicateRequest{Proxy: proxy, Process: process,
		Address: address})
	if err != nil {
		p.o.Logger.WarnContext(ctx, "replica did not check whether an agent is alive, its session counts as gone",
			"replica", replica, "proxy", proxy, "err", err)
	}
	return answer.GetRefusal()
}

// Streams returns the ADS streams of the other replicas, and the names of those that have not answered, sorted.
func (p *Peers) Streams(ctx context.Context) (streams map[mesh.ID][]*adminv1.Stream, missing []string) {
	streams = map[mesh.ID][]*adminv1.Stream{}
	parts, missing := askLists(ctx, p, peerv1.PeerServiceClient.ListStreams, &peerv1.ListStreamsRequest{})
	for _, part := range parts {
		streams[part.GetProxy()] = append(streams[part.GetProxy()], part.GetStreams()...)
	}
	return streams, missing
}

// askLists sends a list call to all other replicas. It returns all parts, and the sorted names of replicas that did not
// answer.
func askLists[Request, Part any](
	ctx context.Context, p *Peers,
	call func(peerv1.PeerServiceClient, context.Context, *Request, ...grpc.CallOption) (
		grpc.ServerStreamingClient[Part], error), r *Request,
) (all []*Part, missing []string) {
	answers, missing := askAll(ctx, p, func(ctx context.Context, replica string) ([]*Part, error) {
		client, err := p.client(replica)
		if err != nil {
			return nil, err
		}
		stream, err := call(client, ctx, r)
		if err != nil {
			return nil, err
		}
		return readAll(stream.Recv)
	})
	return slices.Concat(answers...), missing
}

// askAll sends a call to all other replicas at once. It returns their responses, and the sorted names of replicas that
// did not answer.
func askAll[T any](
	ctx context.Context, p *Peers, ask func(ctx context.Context, replica string) (T, error),
) (answers []T, missing []string) {
	if p == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	p.mu.Lock()
	var replicas []string
	for name := range p.followed {
		replicas = append(replicas, name)
	}
	p.mu.Unlock()
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, name := range replicas {
		asking.Go(func() {
			answer, err := ask(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				missing = append(missing, name)
				return
			}
			answers = append(answers, answer)
		})
	}
	asking.Wait()
	slices.Sort(missing)
	return answers, missing
}

// AskPlaintext calls Local.AskPlaintext on all peers. It drops invalid reports, and peers that do not answer.
func (p *Peers) AskPlaintext(ctx context.Context, meshes []string) []*peerv1.Proxy {
	said, _ := askLists(ctx, p, peerv1.PeerServiceClient.AskPlaintext, &peerv1.AskPlaintextRequest{Meshes: meshes})
	return slices.DeleteFunc(said, func(m *peerv1.Proxy) bool { return facts.CheckProxy(m) != nil })
}

// ListUnresponsive calls Local.ListUnresponsive on all peers. It also returns the sorted names of peers that did not
// answer.
func (p *Peers) ListUnresponsive(ctx context.Context, meshName string) (unresponsive []mesh.ID, missing []string) {
	proxies, missing := askLists(ctx, p, peerv1.PeerServiceClient.ListUnresponsive,
		&peerv1.ListUnresponsiveRequest{Mesh: meshName})
	for _, proxy := range proxies {
		unresponsive = append(unresponsive, proxy.GetProxy())
	}
	return unresponsive, missing
}

// readAll returns all parts of a response, at most one per proxy.
func readAll[T any](receive func() (T, error)) ([]T, error) {
	var parts []T
	for {
		part, err := receive()
		switch {
		case errors.Is(err, io.EOF):
			return parts, nil
		case err != nil:
			return nil, err
		case len(parts) >= maxProxies:
			return nil, status.Errorf(codes.ResourceExhausted, "more than %d proxies", maxProxies)
		}
		parts = append(parts, part)
	}
}

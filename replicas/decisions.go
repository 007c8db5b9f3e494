package replicas

import (
	"context"
	"errors"
	"io"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
)

const (
	// maxDecisions limits the decisions of one replica. More containers are never guarded.
	maxDecisions = 100_000
	// decisionsPerPart keeps a part far below the message size limit.
	decisionsPerPart = 500
)

// Decisions returns the last decisions of the other leading replicas, and the sorted names of replicas that did not
// answer.
func (p *Peers) Decisions(
	ctx context.Context, of *peerv1.ListDecisionsRequest,
) (decided []*peerv1.ListDecisionsPart, missing []string) {
	answers, missing := askAll(ctx, p, func(ctx context.Context, replica string) (*peerv1.ListDecisionsPart, error) {
		return p.listDecisions(ctx, replica, of)
	})
	return slices.DeleteFunc(answers, func(d *peerv1.ListDecisionsPart) bool { return d.GetRound() == nil }), missing
}

// listDecisions merges all parts.
func (p *Peers) listDecisions(
	ctx context.Context, replica string, of *peerv1.ListDecisionsRequest,
) (*peerv1.ListDecisionsPart, error) {
	client, err := p.client(replica)
	if err != nil {
		return nil, err
	}
	stream, err := client.ListDecisions(ctx, of)
	if err != nil {
		return nil, err //nolint:wrapcheck // a gRPC status
	}
	all := &peerv1.ListDecisionsPart{}
	for {
		part, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err //nolint:wrapcheck // a gRPC status
		case len(all.GetDecisions())+len(part.GetDecisions()) > maxDecisions:
			return nil, status.Errorf(codes.ResourceExhausted, "more than %d decisions", maxDecisions)
		}
		if part.GetRound() != nil {
			all.Round = part.GetRound()
		}
		all.Decisions = append(all.Decisions, part.GetDecisions()...)
	}
}

// ListDecisions implements peerv1.PeerServiceServer.
func (s *service) ListDecisions(r *peerv1.ListDecisionsRequest, stream peerv1.PeerService_ListDecisionsServer) error {
	d := s.peers.local.Decisions(r)
	if d.GetRound() == nil {
		return nil
	}
	if err := stream.Send(&peerv1.ListDecisionsPart{Round: d.GetRound()}); err != nil {
		return err
	}
	for some := range slices.Chunk(d.GetDecisions(), decisionsPerPart) {
		if err := stream.Send(&peerv1.ListDecisionsPart{Decisions: some}); err != nil {
			return err
		}
	}
	return nil
}

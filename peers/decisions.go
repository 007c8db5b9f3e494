package peers

import (
	"context"
	"errors"
	"io"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
)

const (
	// maxDecisions of one replica: more containers than that are not guarded.
	maxDecisions = 100_000
	// decisionsPerPart keeps a part far below the limit of a message.
	decisionsPerPart = 500
)

// Decisions are what a replica has decided last about restarts. They must not be changed.
type Decisions struct {
	// Round is nil if it does not lead, or has decided nothing.
	Round *adminv1.RestartRound
	All   []*adminv1.RestartDecision
}

// DecisionFilter narrows decisions. The zero one narrows nothing.
type DecisionFilter struct{ Namespace, PodUID string }

// Decisions returns what the other replicas that lead have decided last, and the names of those that have not answered, sorted.
func (p *Peers) Decisions(ctx context.Context, of DecisionFilter) (decided []Decisions, missing []string) {
	answers, missing := askAll(ctx, p, func(ctx context.Context, replica string) (Decisions, error) { return p.listDecisions(ctx, replica, of) })
	return slices.DeleteFunc(answers, func(d Decisions) bool { return d.Round == nil }), missing
}

func (p *Peers) listDecisions(ctx context.Context, replica string, of DecisionFilter) (Decisions, error) {
	client, err := p.client(replica)
	if err != nil {
		return Decisions{}, err
	}
	stream, err := client.ListDecisions(ctx, &peerv1.ListDecisionsRequest{Namespace: of.Namespace, PodUid: of.PodUID})
	if err != nil {
		return Decisions{}, err //nolint:wrapcheck // it is a status
	}
	var d Decisions
	for {
		part, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return d, nil
		case err != nil:
			return Decisions{}, err //nolint:wrapcheck // it is a status
		case len(d.All)+len(part.GetDecisions()) > maxDecisions:
			return Decisions{}, status.Errorf(codes.ResourceExhausted, "more than %d decisions", maxDecisions)
		}
		if part.GetRound() != nil {
			d.Round = part.GetRound()
		}
		d.All = append(d.All, part.GetDecisions()...)
	}
}

// ListDecisions implements peerv1.PeerServiceServer.
func (s *service) ListDecisions(r *peerv1.ListDecisionsRequest, stream peerv1.PeerService_ListDecisionsServer) error {
	d := s.peers.local.Decisions(DecisionFilter{Namespace: r.GetNamespace(), PodUID: r.GetPodUid()})
	if d.Round == nil {
		return nil
	}
	if err := stream.Send(&peerv1.ListDecisionsPart{Round: d.Round}); err != nil {
		return err
	}
	for some := range slices.Chunk(d.All, decisionsPerPart) {
		if err := stream.Send(&peerv1.ListDecisionsPart{Decisions: some}); err != nil {
			return err
		}
	}
	return nil
}

package cluster

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
)

// Halt records that a cluster is not probed, with the condition's reason and message. It drops the state of the nodes,
// including lost ones, since the next probe may reach a different cluster. It keeps steps.
func Halt(
	ctx context.Context, statuses Statuses, epoch int64, accepted metav1.Condition, reason, message string,
) error {
	l := &ledger{store: statuses, epoch: epoch}
	if err := l.claim(ctx); err != nil {
		return err
	}
	return l.update(ctx, func(s *v1alpha1.WatchedClusterStatus) bool {
		changed := s.Verdict != "" || s.LostSince != nil || len(s.Zones) > 0 || len(s.Counts) > 0
		s.Verdict, s.Cause, s.Since, s.LostSince, s.Zones, s.Counts = "", "", nil, nil, nil, nil
		changed = meta.SetStatusCondition(&s.Conditions, accepted) || changed
		probed := metav1.Condition{Type: ConditionProbed, Status: metav1.ConditionFalse, Reason: reason, Message: message}
		return meta.SetStatusCondition(&s.Conditions, probed) || changed
	})
}

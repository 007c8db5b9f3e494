package cluster

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
)

// Halt writes that a cluster is not probed, and why, as the reason and the message of a condition. What was known of its nodes is forgotten, also that
// they are lost: when it is probed again, it is another cluster for all that is known. The steps stay.
func Halt(ctx context.Context, statuses Statuses, epoch int64, accepted metav1.Condition, reason, message string) error {
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

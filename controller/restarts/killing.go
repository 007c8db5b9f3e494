package restarts

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/sonde-mesh/sonde/controller/events"
)

const (
	// killing is the reason of the kubelet's event about a container that it kills. failedLiveness is in the message of
	// that event. Source: kubernetes pkg/kubelet/events/event.go, and pkg/kubelet/kuberuntime/kuberuntime_manager.go,
	// computePodActions.
	killing        = "Killing"
	failedLiveness = "failed liveness probe"
	// maxKilling is the maximum number of events read per pod.
	maxKilling = 100
)

// kubeletReason returns why the kubelet killed a container, "" if its liveness probe was not the reason. The kubelet
// drops some events of a pod that has many. Without an event, an exit by a signal is taken for a failed probe, since
// applications rarely cause one themselves.
func (u *unheld) kubeletReason(ctx context.Context, s suspect) string {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	found, err := u.o.Watching.CoreV1().Events(s.pod.Namespace).List(ctx,
		metav1.ListOptions{Limit: maxKilling, FieldSelector: fields.AndSelectors(
			fields.OneTermEqualSelector("involvedObject.uid", s.PodUID), fields.OneTermEqualSelector("reason", killing),
		).String()})
	if err != nil {
		u.o.Logger.WarnContext(ctx, "failed to read why a container restarted, using its exit code",
			"namespace", s.pod.Namespace, "pod", s.pod.Name, "err", err)
		found = &corev1.EventList{}
	}
	about := slices.DeleteFunc(found.Items, func(e corev1.Event) bool {
		return !strings.HasSuffix(e.InvolvedObject.FieldPath, "{"+s.Name+"}") || events.LastSeen(&e).Before(s.last.began)
	})
	switch {
	case len(about) > 0:
		last := slices.MaxFunc(about, func(a, b corev1.Event) int { return events.LastSeen(&a).Compare(events.LastSeen(&b)) })
		if strings.Contains(last.Message, failedLiveness) {
			return last.Message
		}
		return ""
	case s.last.bySignal():
		return fmt.Sprintf("it was killed, with exit code %d", s.last.exitCode)
	}
	return ""
}

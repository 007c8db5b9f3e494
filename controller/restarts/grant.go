package restarts

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// maxName is the maximum length of an object's name (RFC 1123, a DNS subdomain).
const maxName = 253

// nameOf returns a readable name for the object of a grant. It depends only on the container, the restart count and the
// try.
func nameOf(pod string, id restartbudget.GrantID) string {
	sum := sha256.Sum256([]byte(id.PodUID))
	end := fmt.Sprintf(".%s.%d.%d.%s", id.Name, id.Restarts, id.Try, hex.EncodeToString(sum[:4]))
	return strings.TrimRight(pod[:min(len(pod), maxName-len(end))], "-.") + end
}

// objectOf returns the object of a new grant.
func objectOf(g restartbudget.Grant, pod watch.Key, epoch int64) *v1alpha1.RestartGrant {
	return &v1alpha1.RestartGrant{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: nameOf(pod.Name, g.ID)},
		Spec: v1alpha1.RestartGrantSpec{
			Pod: pod.Name, PodUID: g.ID.PodUID, Container: g.ID.Name, Restarts: int32(g.ID.Restarts), Try: int32(g.ID.Try),
			Workload: g.Workload.String(),
			Node:     g.Node, Template: g.Template, Epoch: epoch, DryRun: g.DryRun, Granted: metav1.NewMicroTime(g.Granted),
		},
	}
}

// statusOf returns the status for the object of a grant.
func statusOf(g restartbudget.Grant) v1alpha1.RestartGrantStatus {
	at := func(t time.Time) *metav1.MicroTime {
		if t.IsZero() {
			return nil
		}
		return new(metav1.NewMicroTime(t))
	}
	return v1alpha1.RestartGrantStatus{Outcome: string(g.Outcome), Spent: at(g.Spent), Ended: at(g.Ended),
		Judged: at(g.Judged)}
}

var outcomes = []restartbudget.Outcome{
	restartbudget.Open, restartbudget.Refunded, restartbudget.Spent, restartbudget.Helped, restartbudget.Unhelpful,
	restartbudget.Released,
}

// grantOf is the reverse of objectOf and statusOf.
func grantOf(o *v1alpha1.RestartGrant) (grant, error) {
	s := o.Spec
	var errs []error
	workload, ok := restartbudget.ParseWorkloadID(s.Workload)
	if !ok {
		errs = append(errs, fmt.Errorf("spec.workload: %.80q: must be Kind/namespace/name", s.Workload))
	}
	if s.Pod == "" || s.PodUID == "" || s.Container == "" || s.Restarts < 0 || s.Try < 0 || s.Epoch < 1 {
		errs = append(errs, errors.New(
			"spec: pod, podUID, container and epoch are required, and restarts and try must not be negative"))
	}
	if !slices.Contains(outcomes, restartbudget.Outcome(o.Status.Outcome)) {
		errs = append(errs, fmt.Errorf("status.outcome: %.80q: must be one of %q", o.Status.Outcome, outcomes))
	}
	at := func(t *metav1.MicroTime) time.Time {
		if t == nil {
			return time.Time{}
		}
		return t.Time
	}
	return grant{
		Grant: restartbudget.Grant{
			ID: restartbudget.GrantID{ContainerKey: restartbudget.ContainerKey{PodUID: s.PodUID, Name: s.Container},
				Restarts: int(s.Restarts), Try: int(s.Try)},
			Workload: workload, Node: s.Node, Template: s.Template, DryRun: s.DryRun, Granted: s.Granted.Time,
			Spent: at(o.Status.Spent), Ended: at(o.Status.Ended), Judged: at(o.Status.Judged),
			Outcome: restartbudget.Outcome(o.Status.Outcome),
		},
		epoch: max(s.Epoch, o.Status.Epoch), writer: s.Epoch, created: o.CreationTimestamp.Time,
		pod: watch.Key{Namespace: o.Namespace, Name: s.Pod}, version: o.ResourceVersion,
	}, errors.Join(errs...)
}

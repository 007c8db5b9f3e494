package restarts

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// listPage is the page size of lists.
const listPage = 500

// listGrants lists all grants from the API server: a watch may lack the last grants of the previous leader.
func listGrants(ctx context.Context, client rest.Interface) ([]v1alpha1.RestartGrant, error) {
	var all []v1alpha1.RestartGrant
	for token := ""; ; {
		var page v1alpha1.RestartGrantList
		err := client.Get().Resource(resource).Param("limit", strconv.Itoa(listPage)).Param("continue", token).Do(ctx).
			Into(&page)
		if err != nil {
			return nil, fmt.Errorf("list RestartGrants: %w", err)
		}
		all = append(all, page.Items...)
		if token = page.Continue; token == "" {
			return all, nil
		}
	}
}

// create queues the creation of a new grant's object. The agent receives the grant after a watch has it.
func (l *leader) create(g restartbudget.Grant, pod watch.Key) {
	o := objectOf(g, pod, l.epoch)
	id := writeID{classGrant, watch.Key{Namespace: o.Namespace, Name: o.Name}}
	l.creating[id] = creation{g, pod}
	l.writer.put(id, func(ctx context.Context) error {
		return l.o.Writing.Post().Resource(resource).Namespace(o.Namespace).Body(o).Do(ctx).Error()
	})
}

// patchStatus queues a write of a grant's status.
func (l *leader) patchStatus(key watch.Key, status v1alpha1.RestartGrantStatus) {
	l.writer.put(writeID{classStatus, key}, func(ctx context.Context) error {
		patch, err := l.statusPatch(key, status)
		if err != nil {
			return fmt.Errorf("encode status of grant: %w", err)
		}
		err = l.o.Writing.Patch(types.MergePatchType).Resource(resource).Namespace(key.Namespace).Name(key.Name).
			SubResource("status").Body(patch).Do(ctx).Error()
		return ignoreGone(err)
	})
}

// patchCondition queues a write of a pod's condition. It includes the UID, so that it fails for another pod of the same
// name.
func (l *leader) patchCondition(key watch.Key, uid string, c corev1.PodCondition) {
	l.writer.put(writeID{classCondition, key}, func(ctx context.Context) error {
		fields := map[string]any{"type": c.Type, "status": c.Status, "reason": c.Reason, "message": c.Message}
		if !c.LastTransitionTime.IsZero() {
			fields["lastTransitionTime"] = c.LastTransitionTime
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid},
			"status": map[string]any{"conditions": []any{fields}}})
		if err != nil {
			return fmt.Errorf("encode condition of pod: %w", err)
		}
		_, err = l.o.Pods.Pods(key.Namespace).Patch(ctx, key.Name, types.StrategicMergePatchType, patch,
			metav1.PatchOptions{}, "status")
		return ignoreGone(err)
	})
}

// remove queues the deletion of a grant's object.
func (l *leader) remove(key watch.Key) {
	l.writer.put(writeID{classDelete, key}, func(ctx context.Context) error {
		return ignoreGone(l.o.Writing.Delete().Resource(resource).Namespace(key.Namespace).Name(key.Name).
			Body(&metav1.DeleteOptions{}).Do(ctx).Error())
	})
}

// ignoreGone returns nil if the object no longer exists, or was replaced by another one of the same name.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err //nolint:wrapcheck // the writer adds what was written
}

// takeResults handles the results of writes. If the creation of a grant failed, it withdraws the grant, and the
// container requests another one later.
func (l *leader) takeResults(ctx context.Context, now time.Time) {
	for _, r := range l.writer.takeResults() {
		switch r.class {
		case classCondition:
			l.conditions[r.object] = r.at
			if isForbiddenCondition(r.class, r.err) && !l.noConditions {
				l.noConditions = true
				l.o.Logger.InfoContext(ctx, "not allowed to patch pods/status, pod conditions are disabled",
					"condition", mesh.ConditionLivenessHeld, "err", r.err)
			}
		case classStatus:
			if status, is := l.sent[r.object]; is && r.err == nil {
				l.taken[r.object] = status
			}
		case classGrant:
			c, is := l.creating[r.writeID]
			if !is {
				continue
			}
			delete(l.creating, r.writeID)
			l.created(ctx, now, r, c)
		}
	}
}

func (l *leader) created(ctx context.Context, now time.Time, r result, c creation) {
	id := c.grant.ID
	log := l.o.Logger.With("namespace", c.pod.Namespace, "pod", c.pod.Name, "container", id.Name, "restarts", id.Restarts,
		"grant", r.object.Name)
	switch {
	case r.err == nil:
		log.InfoContext(ctx, "restart granted")
		l.report.granted(c)
	case apierrors.IsAlreadyExists(r.err): // it was sent twice, or an earlier leader granted it
		log.InfoContext(ctx, "restart was granted before")
		if g := l.grants.Get(r.object); g != nil && g.Outcome != restartbudget.Open { // it has ended: use another try
			l.state.Refund(now, id)
		}
	default:
		log.WarnContext(ctx, "failed to write a RestartGrant, retrying", "err", r.err)
		l.state.Refund(now, id)
		l.refused[id.ContainerKey] = now
	}
}

// withdraw removes waiting grants whose containers no longer fail, or may no longer restart.
func (l *leader) withdraw(now time.Time, decisions []restartbudget.Decision) {
	if len(l.creating) == 0 {
		return
	}
	granted := map[restartbudget.GrantID]bool{}
	for i := range decisions {
		if d := &decisions[i]; d.Verdict == restartbudget.Granted {
			granted[d.Grant.ID] = true
		}
	}
	for id, c := range l.creating {
		if granted[c.grant.ID] {
			continue
		}
		last, is := l.state.Last(c.grant.ID.ContainerKey)
		over := !is || last.ID != c.grant.ID || last.Outcome != restartbudget.Open
		if l.writer.withdraw(id, over) {
			delete(l.creating, id)
			l.state.Refund(now, c.grant.ID)
		}
	}
}

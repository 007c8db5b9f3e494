package restarts

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// Release allows a workload whose restarts did not help to restart again. It marks the workload's grants as released,
// and the leader's watch receives that. Any replica may call it. It returns the number of grants, also with an error.
// The error wraps the API server's.
func (r *Restarts) Release(ctx context.Context, workload restartbudget.WorkloadID) (n int, err error) {
	if err := r.grants.Missing(); err != nil {
		return 0, err
	}
	patch, err := json.Marshal(
		map[string]any{"status": v1alpha1.RestartGrantStatus{Outcome: string(restartbudget.Released)}})
	if err != nil {
		return 0, fmt.Errorf("encode a status: %w", err)
	}
	for key, g := range r.allGrants() {
		if g.Workload != workload || g.Outcome != restartbudget.Unhelpful {
			continue
		}
		err := r.o.Writing.Patch(types.MergePatchType).Resource(resource).Namespace(key.Namespace).Name(key.Name).
			SubResource("status").Body(patch).Do(ctx).Error()
		switch {
		case apierrors.IsNotFound(err): // a deleted grant no longer counts
		case err != nil:
			return n, fmt.Errorf("write the status of RestartGrant %s: %w", key, err)
		default:
			n++
		}
	}
	return n, nil
}

// allGrants returns all grants.
func (r *Restarts) allGrants() map[watch.Key]*grant {
	all := map[watch.Key]*grant{}
	for _, key := range r.grants.Keys() {
		if g := r.grants.Get(key); g != nil {
			all[key] = g
		}
	}
	return all
}

func grantsOf(all map[watch.Key]*grant) []restartbudget.Grant {
	grants := make([]restartbudget.Grant, 0, len(all))
	for _, g := range all {
		grants = append(grants, g.Grant)
	}
	return grants
}

func releasedOf(all map[watch.Key]*grant) map[watch.Key]bool {
	released := map[watch.Key]bool{}
	for key, g := range all {
		if g.Outcome == restartbudget.Released {
			released[key] = true
		}
	}
	return released
}

// takeReleases stops counting restarts that an operator has released since the last round. It runs before the round's
// writes.
func (l *leader) takeReleases(ctx context.Context) {
	all := l.allGrants()
	now, workloads := releasedOf(all), map[restartbudget.WorkloadID]bool{}
	for key := range now {
		if !l.released[key] {
			workloads[all[key].Workload] = true
		}
	}
	l.released = now
	for workload := range workloads {
		l.state.Release(workload)
		for id, g := range l.judged {
			if g.Workload == workload && g.Outcome == restartbudget.Unhelpful {
				g.Outcome = restartbudget.Released
				l.judged[id] = g
			}
		}
		l.o.Logger.InfoContext(ctx, "operator released restarts that did not help", "workload", workload.String())
	}
}

// statusPatch returns the patch for a grant's status. The patch must not overwrite an operator's release. So it omits
// the outcome if the API already has Unhelpful, and sets Unhelpful only for the watched version of the object: if a
// newer version exists, the patch fails.
func (r *Restarts) statusPatch(key watch.Key, status v1alpha1.RestartGrantStatus) ([]byte, error) {
	patch := map[string]any{}
	if status.Outcome == string(restartbudget.Unhelpful) {
		switch known := r.grants.Get(key); {
		case known == nil: // deleted, so the patch will fail
		case known.Outcome == restartbudget.Unhelpful || known.Outcome == restartbudget.Released:
			status.Outcome = ""
		default:
			patch["metadata"] = map[string]string{"resourceVersion": known.version}
		}
	}
	patch["status"] = status
	return json.Marshal(patch)
}

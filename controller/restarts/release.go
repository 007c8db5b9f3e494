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

// Release lets a workload restart again whose restarts did not help: it writes to their grants that they count no more, which the leader sees by its
// watch. Any replica may do so. It returns how many there were, also with an error. That of the API server is among the errors.
func (r *Restarts) Release(ctx context.Context, workload restartbudget.WorkloadID) (n int, err error) {
	if err := r.grants.Missing(); err != nil {
		return 0, err
	}
	patch, err := json.Marshal(map[string]any{"status": v1alpha1.RestartGrantStatus{Outcome: string(restartbudget.Released)}})
	if err != nil {
		return 0, fmt.Errorf("encode a status: %w", err)
	}
	for key, g := range r.allGrants() {
		if g.Workload != workload || g.Outcome != restartbudget.Unhelpful {
			continue
		}
		err := r.o.Writing.Patch(types.MergePatchType).Resource(resource).Namespace(key.Namespace).Name(key.Name).SubResource("status").Body(patch).Do(ctx).Error()
		switch {
		case apierrors.IsNotFound(err): // it counts no more either
		case err != nil:
			return n, fmt.Errorf("write the status of RestartGrant %s: %w", key, err)
		default:
			n++
		}
	}
	return n, nil
}

// allGrants returns the grants that there are.
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

// takeReleases counts the restarts no more that an operator has released since the last time. It comes before all that is written in a round.
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
		l.o.Logger.InfoContext(ctx, "restarts that did not help count no more", "workload", workload.String())
	}
}

// statusPatch returns the patch that writes the status of a grant. What an operator may release is not overwritten: once the API says that a restart
// has not helped the outcome is left out, and to say so the patch is of the object that the watch has, so that it fails if there is a newer one.
func (r *Restarts) statusPatch(key watch.Key, status v1alpha1.RestartGrantStatus) ([]byte, error) {
	patch := map[string]any{}
	if status.Outcome == string(restartbudget.Unhelpful) {
		switch known := r.grants.Get(key); {
		case known == nil: // deleted, which the patch will tell
		case known.Outcome == restartbudget.Unhelpful || known.Outcome == restartbudget.Released:
			status.Outcome = ""
		default:
			patch["metadata"] = map[string]string{"resourceVersion": known.version}
		}
	}
	patch["status"] = status
	return json.Marshal(patch)
}

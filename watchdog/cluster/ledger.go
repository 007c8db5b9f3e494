package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/partition"
	"github.com/sonde-mesh/sonde/watchdog/config"
	"github.com/sonde-mesh/sonde/watchdog/scale"
)

// Statuses keeps the status of a WatchedCluster.
type Statuses interface {
	// Read returns the status, and the version of the object.
	Read(ctx context.Context) (v1alpha1.WatchedClusterStatus, string, error)
	// Write replaces the status if the object still has the given version, and returns the new version. Otherwise the
	// error wraps ErrConflict.
	Write(ctx context.Context, status v1alpha1.WatchedClusterStatus, version string) (string, error)
}

// ErrConflict is returned by Statuses.Write for an object that has changed since it was read.
var ErrConflict = errors.New("changed meanwhile")

// errFenced means that another leader has taken over.
var errFenced = errors.New("a later leader has written the status")

// Conditions of a WatchedCluster beside Accepted, and their reasons.
const (
	// ConditionProbed is true if the last probe could read the cluster.
	ConditionProbed = "Probed"
	reasonProbed    = "Probed"
)

const (
	// maxZones limits the zones in the status.
	maxZones = 32
	// maxMessage limits the message of a condition, in bytes.
	maxMessage = 1024
	// maxConflicts limits the attempts to write a status that other clients change.
	maxConflicts = 5
)

// ledger is the status of a cluster as written by this leader. It is safe for concurrent use.
type ledger struct {
	store Statuses
	epoch int64

	writing sync.Mutex // held during a write, to serialise writes

	// accepted is the Accepted condition of the object.
	accepted atomic.Pointer[metav1.Condition]

	mu      sync.Mutex // guards the following fields
	version string
	status  v1alpha1.WatchedClusterStatus

	countedAt, probedAt time.Time // last write of counts and condition; only used by judged
}

var _ scale.Journal = (*ledger)(nil)

// claim reads the status that earlier leaders have written, and prevents them from writing it again.
func (l *ledger) claim(ctx context.Context) error {
	status, version, err := l.store.Read(ctx)
	if err != nil {
		return err
	}
	if err := l.checkEpoch(&status); err != nil {
		return err
	}
	l.mu.Lock()
	l.status, l.version = status, version
	l.mu.Unlock()
	return l.update(ctx, func(s *v1alpha1.WatchedClusterStatus) bool {
		s.Epoch = l.epoch
		return true
	})
}

func (l *ledger) checkEpoch(s *v1alpha1.WatchedClusterStatus) error {
	if s.Epoch > l.epoch {
		return fmt.Errorf("epoch %d is after %d: %w", s.Epoch, l.epoch, errFenced)
	}
	return nil
}

// update changes the status, and writes it if change returns true. After a failed write, the status is unchanged.
func (l *ledger) update(ctx context.Context, change func(*v1alpha1.WatchedClusterStatus) bool) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	status, version := *l.status.DeepCopy(), l.version
	l.mu.Unlock()
	if !change(&status) {
		return nil
	}
	for range maxConflicts {
		written, err := l.store.Write(ctx, status, version)
		if err == nil {
			l.mu.Lock()
			l.status, l.version = status, written
			l.mu.Unlock()
			return nil
		}
		if !errors.Is(err, ErrConflict) {
			return err
		}
		var now v1alpha1.WatchedClusterStatus
		if now, version, err = l.store.Read(ctx); err != nil {
			return err
		}
		if err := l.checkEpoch(&now); err != nil {
			return err
		}
	}
	return fmt.Errorf("write status: %d conflicts with other writers: %w", maxConflicts, ErrConflict)
}

// restore returns the verdict of the previous leader.
func (l *ledger) restore() partition.State {
	l.mu.Lock()
	defer l.mu.Unlock()
	lost := map[partition.Group]time.Time{}
	if since := l.status.LostSince; since != nil {
		lost[partition.Whole] = since.Time
	}
	for _, z := range l.status.Zones {
		if z.LostSince != nil {
			lost[partition.Group{Zone: z.Name}] = z.LostSince.Time
		}
	}
	return partition.Restore(lost)
}

func (l *ledger) hasSteps() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.status.Steps) > 0
}

// orphans returns the scaled-down dependants that the configuration no longer lists.
func (l *ledger) orphans(dependants []config.Dependant) []config.Dependant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Orphans(l.status.Steps, dependants)
}

// Orphans returns dependants that have a step but are no longer configured. They are scaled up with the lowest level.
func Orphans(steps []v1alpha1.ScaleStep, dependants []config.Dependant) []config.Dependant {
	var all []config.Dependant
	for _, step := range steps {
		if !slices.ContainsFunc(dependants, func(d config.Dependant) bool { return d.Ref == step.Ref }) {
			all = append(all, config.Dependant{Ref: step.Ref, Optional: true,
				Up: config.Scaling{Timeout: config.DefaultScaleTimeout}})
		}
	}
	return all
}

// judged writes changed verdicts, and the error of a probe.
func (l *ledger) judged(ctx context.Context, state partition.State, failed error) error {
	return l.update(ctx, func(s *v1alpha1.WatchedClusterStatus) bool {
		whole := state[partition.Whole]
		changed := s.Verdict != string(whole.Verdict) || s.Cause != string(whole.Cause) ||
			(s.LostSince != nil) != whole.Latched()
		s.Verdict, s.Cause, s.Since = string(whole.Verdict), string(whole.Cause), timeOf(whole.Since)
		s.LostSince = lostSince(s.LostSince, whole)
		zones := zonesOf(s.Zones, state)
		changed = changed || !slices.EqualFunc(zones, s.Zones, func(a, b v1alpha1.WatchedZone) bool {
			return a.Name == b.Name && a.Verdict == b.Verdict && a.Cause == b.Cause &&
				(a.LostSince != nil) == (b.LostSince != nil)
		})
		s.Zones = zones
		if failed == nil {
			changed = l.counted(s, state, changed)
		}
		changed = l.setProbed(s, whole.Cause, failed) || changed
		if accepted := l.accepted.Load(); accepted != nil {
			changed = meta.SetStatusCondition(&s.Conditions, *accepted) || changed
		}
		return changed
	})
}

// tellEvery is the minimum interval between writes if only counts and messages have changed, which they do with each
// probe: each write goes to etcd.
const tellEvery = time.Minute

// setProbed sets the condition, and reports whether to write it. A changed message alone is rarely written, since it
// may change with each probe.
func (l *ledger) setProbed(s *v1alpha1.WatchedClusterStatus, cause partition.Cause, failed error) bool {
	c := metav1.Condition{Type: ConditionProbed, Status: metav1.ConditionTrue, Reason: reasonProbed,
		Message: "the API server answers, and the node leases are readable"}
	if failed != nil {
		c.Status, c.Reason = metav1.ConditionFalse, reasonOf(cause)
		c.Message = failed.Error()
		c.Message = strings.ToValidUTF8(c.Message[:min(len(c.Message), maxMessage)], "")
	}
	before := meta.FindStatusCondition(s.Conditions, c.Type)
	if before != nil && before.Status == c.Status && before.Reason == c.Reason &&
		(before.Message == c.Message || time.Since(l.probedAt) < tellEvery) {
		return false
	}
	l.probedAt = time.Now()
	meta.SetStatusCondition(&s.Conditions, c)
	return true
}

// Refuse writes the condition of an invalid object, which is not watched.
func Refuse(ctx context.Context, statuses Statuses, epoch int64, accepted metav1.Condition) error {
	l := &ledger{store: statuses, epoch: epoch}
	if err := l.claim(ctx); err != nil {
		return err
	}
	return l.update(ctx, func(s *v1alpha1.WatchedClusterStatus) bool {
		return meta.SetStatusCondition(&s.Conditions, accepted)
	})
}

// reasonOf returns the condition reason for a cause: APIServerAway for api-server-away.
func reasonOf(c partition.Cause) string {
	switch c {
	case partition.APIServerAway:
		return "APIServerAway"
	case partition.Throttled:
		return "Throttled"
	}
	return "Unreadable"
}

// zonesOf returns the zones that are silent or count as lost.
func zonesOf(before []v1alpha1.WatchedZone, state partition.State) []v1alpha1.WatchedZone {
	var zones []v1alpha1.WatchedZone
	for group, status := range state {
		if group == partition.Whole || status.Verdict == partition.Seen {
			continue
		}
		z := v1alpha1.WatchedZone{Name: group.Zone, Verdict: string(status.Verdict), Cause: string(status.Cause)}
		i := slices.IndexFunc(before, func(b v1alpha1.WatchedZone) bool { return b.Name == group.Zone })
		var since *metav1.Time
		if i >= 0 {
			since = before[i].LostSince
		}
		z.LostSince = lostSince(since, status)
		zones = append(zones, z)
	}
	slices.SortFunc(zones, func(a, b v1alpha1.WatchedZone) int { return strings.Compare(a.Name, b.Name) })
	return zones[:min(len(zones), maxZones)]
}

// lostSince returns since when a group has counted as lost, nil if it does not.
func lostSince(before *metav1.Time, s partition.Status) *metav1.Time {
	switch {
	case !s.Latched():
		return nil
	case before != nil:
		return before
	}
	return timeOf(s.Since)
}

func timeOf(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return &metav1.Time{Time: t}
}

// Step implements scale.Journal.
func (l *ledger) Step(ref v1alpha1.DependantRef) (v1alpha1.ScaleStep, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := indexOf(l.status.Steps, ref); i >= 0 {
		return l.status.Steps[i], true
	}
	return v1alpha1.ScaleStep{}, false
}

// Write implements scale.Journal.
func (l *ledger) Write(ctx context.Context, ref v1alpha1.DependantRef, step *v1alpha1.ScaleStep) error {
	return l.update(ctx, func(s *v1alpha1.WatchedClusterStatus) bool {
		i := indexOf(s.Steps, ref)
		switch {
		case step == nil && i < 0:
			return false
		case step == nil:
			s.Steps = slices.Delete(s.Steps, i, i+1)
		case i < 0:
			s.Steps = append(s.Steps, *step)
		default:
			s.Steps[i] = *step
		}
		return true
	})
}

func indexOf(steps []v1alpha1.ScaleStep, ref v1alpha1.DependantRef) int {
	return slices.IndexFunc(steps, func(s v1alpha1.ScaleStep) bool { return s.Ref == ref })
}

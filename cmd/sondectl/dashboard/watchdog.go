package dashboard

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/watchdog"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/partition"
	"github.com/sonde-mesh/sonde/watchdog/scale"
)

const (
	// clustersEvery is the least time between two readings: sonde-watchdog probes every ten seconds by default.
	clustersEvery = 5 * time.Second
	// dependantsLimit limits the time for the dependants of all clusters in one reading, maxDependants their number.
	dependantsLimit = 5 * time.Second
	maxDependants   = 64
	// sectionWatchdog is no part of a reading of the control plane, which does not know the watchdog.
	sectionWatchdog = "watchdog"
	noKind          = "the API server has no WatchedClusters: their CustomResourceDefinition is not installed"
)

// Clusters reads WatchedClusters, and their dependants, with the rights of the caller.
type Clusters interface {
	List(ctx context.Context, limit int64) (clusters []v1alpha1.WatchedCluster, more bool, err error)
	In(namespace string) scale.Objects
}

var _ Clusters = (*watchdog.Reader)(nil)

// Watchdog is what sonde-watchdog has found and done.
type Watchdog struct {
	Rows []*Watched `json:"rows"`
	// More means that the API server has more than maxListed.
	More bool `json:"more,omitempty"`
}

// Watched is a WatchedCluster.
type Watched struct {
	*watchdog.Explanation

	Level Level `json:"level"`
	// Scaled dependants are scaled down, or on their way, of Total. Unread means that they were not read this time.
	Scaled int    `json:"scaled,omitempty"`
	Total  int    `json:"total"`
	Unread bool   `json:"unread,omitempty"`
	Do     string `json:"do"`
}

// runClusters reads the WatchedClusters while a page is open, until ctx ends.
func (s *source) runClusters(ctx context.Context) {
	for range run.EveryOr(ctx, time.Hour, s.wakeClusters) {
		for s.watched() && ctx.Err() == nil {
			began := time.Now()
			s.readClusters(ctx)
			pause := max(clustersEvery, idleShare*time.Since(began))
			s.setClustersDue(time.Now().Add(pause + readLimit + readPatience))
			_ = run.Sleep(ctx, pause) // the loop sees the end of ctx
		}
	}
}

func (s *source) putClusters(section Section) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.sections[sectionWatchdog] = section
}

func (s *source) setClustersDue(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sections[sectionWatchdog].Due = &t
}

// readClusters reads the WatchedClusters into their section, which says why it could not.
func (s *source) readClusters(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	now := time.Now()
	from, err := s.clusters()
	if err != nil {
		s.putClusters(Section{Absent: true, Error: shorten(err.Error())})
		return
	}
	content, err := watchdogOf(ctx, from)
	switch {
	case err == nil:
		s.putClusters(sectionOf(content, now))
	case apierrors.IsForbidden(err):
		s.putClusters(Section{Denied: true, Error: shorten(err.Error())})
	case apierrors.IsNotFound(err):
		s.putClusters(Section{Absent: true, Error: noKind})
	default:
		old, _, _ := s.section(sectionWatchdog)
		old.Error, old.Absent, old.Denied = shorten(err.Error()), false, false
		s.putClusters(old)
	}
}

// watchdogOf reads the clusters, the worst first, and the dependants of as many as the limits allow.
func watchdogOf(ctx context.Context, from Clusters) (*Watchdog, error) {
	clusters, more, err := from.List(ctx, maxListed)
	if err != nil {
		return nil, err //nolint:wrapcheck // it is for users
	}
	all := &Watchdog{Rows: make([]*Watched, 0, len(clusters)), More: more}
	objects := map[*Watched]*v1alpha1.WatchedCluster{}
	for i := range clusters {
		row := watchedOf(&clusters[i])
		objects[row] = &clusters[i]
		all.Rows = append(all.Rows, row)
	}
	slices.SortFunc(all.Rows, func(a, b *Watched) int {
		worse := slices.Index(levels, a.Level) - slices.Index(levels, b.Level)
		return cmp.Or(worse, strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	ctx, cancel := context.WithTimeout(ctx, dependantsLimit)
	defer cancel()
	left := maxDependants
	for _, row := range all.Rows {
		o := objects[row]
		// orphans, which are scaled down although the object lacks them now, are read as well
		if left -= len(o.Spec.Dependants) + len(o.Status.Steps); left >= 0 && ctx.Err() == nil {
			e := watchdog.Explain(ctx, o, from.In(o.Namespace))
			if ctx.Err() == nil { // otherwise it would take the end of the time for a failure
				row.Explanation, row.Unread = e, false
			}
		}
		row.shorten()
	}
	return all, nil
}

func watchedOf(o *v1alpha1.WatchedCluster) *Watched {
	e := watchdog.Explain(context.Background(), o, nil) // it reads nothing
	row := &Watched{
		Explanation: e, Level: Good, Scaled: len(o.Status.Steps), Total: len(o.Spec.Dependants), Unread: true,
		Do: "sondectl watchdog explain " + e.Name + " -n " + e.Namespace,
	}
	unseen := slices.ContainsFunc(e.Nodes, func(z watchdog.Zone) bool { return z.Verdict != string(partition.Seen) })
	switch {
	case e.Refused != "" || e.Verdict == string(partition.Lost):
		row.Level = Bad
	case e.Verdict != string(partition.Seen):
		row.Level = Unknown
	case e.Failed != "" || e.Paused || row.Scaled > 0 || unseen || e.LostSince != nil:
		row.Level = Warn
	}
	return row
}

func (w *Watched) shorten() {
	for _, text := range []*string{&w.Why, &w.Next, &w.Refused, &w.Failed, &w.Cause} {
		*text = shorten(*text)
	}
	for i := range w.Dependants {
		w.Dependants[i].Note = shorten(w.Dependants[i].Note)
	}
}

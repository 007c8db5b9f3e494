package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/watchdog/scale"
)

// fakeClusters has clusters, and their dependants with two replicas each. takes is the time to read one.
type fakeClusters struct {
	clusters []v1alpha1.WatchedCluster
	more     bool
	err      error
	takes    time.Duration
	lists    atomic.Int64
	away     atomic.Bool
	scale.Objects
}

func (f *fakeClusters) List(context.Context, int64) ([]v1alpha1.WatchedCluster, bool, error) {
	f.lists.Add(1)
	if f.away.Load() {
		return nil, false, errors.New("no response")
	}
	return f.clusters, f.more, f.err
}

func (f *fakeClusters) In(string) scale.Objects { return f }

func (f *fakeClusters) Get(ctx context.Context, _ v1alpha1.DependantRef) (scale.Object, error) {
	select {
	case <-ctx.Done():
		return scale.Object{}, ctx.Err()
	case <-time.After(f.takes):
		return scale.Object{Replicas: 2}, nil
	}
}

func (f *fakeClusters) open() (Clusters, error) { return f, nil }

func (f *fakeClusters) add(name string, dependants int, s v1alpha1.WatchedClusterStatus) *v1alpha1.WatchedCluster {
	o := v1alpha1.WatchedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "shoot", Name: name}, Status: s}
	o.Spec.Local = true
	for i := range dependants {
		o.Spec.Dependants = append(o.Spec.Dependants, v1alpha1.WatchedDependant{
			Ref: v1alpha1.DependantRef{APIVersion: "apps/v1", Kind: "Deployment", Name: fmt.Sprintf("d%d", i)}, ScaleUp: &v1alpha1.ScaleInfo{}, ScaleDown: &v1alpha1.ScaleInfo{Level: int32(i)},
		})
	}
	f.clusters = append(f.clusters, o)
	return &f.clusters[len(f.clusters)-1]
}

func TestLevelsOfWatchedClusters(t *testing.T) {
	now := metav1.NewTime(at)
	failed := []metav1.Condition{{Type: "Probed", Status: metav1.ConditionFalse, Message: "timeout"}}
	refused := []metav1.Condition{{Type: "Accepted", Status: metav1.ConditionFalse, Message: "spec: bad"}}
	tests := map[string]struct {
		status v1alpha1.WatchedClusterStatus
		paused bool
		want   Level
	}{
		"seen":                     {v1alpha1.WatchedClusterStatus{Verdict: "seen", Counts: []v1alpha1.NodeCount{{Nodes: 3}, {Zone: "a", Nodes: 3}}}, false, Good},
		"lost":                     {v1alpha1.WatchedClusterStatus{Verdict: "lost", Cause: "all"}, false, Bad},
		"unknown":                  {v1alpha1.WatchedClusterStatus{Verdict: "unknown", Cause: "throttled"}, false, Unknown},
		"not judged":               {v1alpha1.WatchedClusterStatus{}, false, Unknown},
		"invalid":                  {v1alpha1.WatchedClusterStatus{Verdict: "seen", Conditions: refused}, false, Bad},
		"the last probe failed":    {v1alpha1.WatchedClusterStatus{Verdict: "seen", Conditions: failed}, false, Warn},
		"paused":                   {v1alpha1.WatchedClusterStatus{Verdict: "seen"}, true, Warn},
		"lost until a moment ago":  {v1alpha1.WatchedClusterStatus{Verdict: "seen", LostSince: &now}, false, Warn},
		"a dependant is down":      {v1alpha1.WatchedClusterStatus{Verdict: "seen", Steps: []v1alpha1.ScaleStep{{State: "Lowered"}}}, false, Warn},
		"one of its zones is lost": {v1alpha1.WatchedClusterStatus{Verdict: "seen", Counts: []v1alpha1.NodeCount{{Zone: "a"}}, Zones: []v1alpha1.WatchedZone{{Name: "a", Verdict: "lost"}}}, false, Warn},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := new(fakeClusters).add("a", 1, tc.status)
			o.Spec.Paused = tc.paused
			if row := watchedOf(o); row.Level != tc.want {
				t.Errorf("it is %s, want %s", row.Level, tc.want)
			}
		})
	}
}

// The dependants of the worst clusters are read, as many as the limit allows.
func TestWatchedClustersAreListedWorstFirst(t *testing.T) {
	f := &fakeClusters{more: true}
	f.add("d", maxDependants/2, v1alpha1.WatchedClusterStatus{Verdict: "seen"})
	f.add("b", maxDependants/2, v1alpha1.WatchedClusterStatus{Verdict: "seen"})
	f.add("a", 1, v1alpha1.WatchedClusterStatus{Verdict: "seen"})
	f.add("c", 2, v1alpha1.WatchedClusterStatus{Verdict: "lost", Cause: strings.Repeat("x", 2*maxText)})
	got, err := watchdogOf(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, row := range got.Rows {
		rows = append(rows, fmt.Sprintf("%s %t %d", row.Name, row.Unread, len(row.Dependants)))
	}
	if want := []string{"c false 2", "a false 1", "b false 32", "d true 0"}; !slices.Equal(rows, want) || !got.More {
		t.Errorf("the rows are %q, more %t, want %q", rows, got.More, want)
	}
	first := got.Rows[0]
	if d := first.Dependants; len(d) != 2 || d[1].Next != "scale-down" || len(d[1].WaitsFor) != 1 || d[1].WaitsFor[0].Name != "d0" {
		t.Errorf("the dependants are %+v", d)
	}
	if len(first.Cause) > maxText+10 {
		t.Errorf("a text has %d bytes", len(first.Cause))
	}
}

// The section says in one sentence why it has no clusters, and is never empty without a reason.
func TestWatchdogSection(t *testing.T) {
	of := schema.GroupResource{Group: "sonde.dev", Resource: "watchedclusters"}
	away := errors.New("no response from the API server")
	tests := map[string]struct {
		clusters func() (Clusters, error)
		want     Section
		page     string
	}{
		"without a kubeconfig": {noClusters, Section{Absent: true, Error: "no kubeconfig"}, "no kubeconfig"},
		"without the right":    {(&fakeClusters{err: apierrors.NewForbidden(of, "", away)}).open, Section{Denied: true, Error: `watchedclusters.sonde.dev is forbidden: no response from the API server`}, "Not allowed: watchedclusters"},
		"without the kind":     {(&fakeClusters{err: apierrors.NewNotFound(of, "")}).open, Section{Absent: true, Error: "the API server has no WatchedClusters: their CustomResourceDefinition is not installed"}, "is not installed"},
		"API server away":      {(&fakeClusters{err: away}).open, Section{Error: away.Error()}, away.Error()},
		"without a single one": {new(fakeClusters).open, Section{}, "No WatchedCluster exists"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSource(callOf(wellAPI()), tc.clusters)
			if err := s.once(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.readClusters(t.Context())
			got, _, _ := s.section(sectionWatchdog)
			if got.Absent != tc.want.Absent || got.Denied != tc.want.Denied || got.Error != tc.want.Error || (got.ReadAt == nil) != (tc.want.Error != "") {
				t.Errorf("the section is %+v", got)
			}
			var page bytes.Buffer
			if err := s.snapshot(&page); err != nil {
				t.Fatal(err)
			}
			if _, after, _ := strings.Cut(page.String(), "<h2>Watchdog</h2>"); !strings.Contains(after, tc.page) {
				t.Errorf("the snapshot lacks %q", tc.page)
			}
		})
	}
}

func TestWatchdogInTheSnapshot(t *testing.T) {
	f := &fakeClusters{more: true}
	since := metav1.Now()
	f.add("a", 2, v1alpha1.WatchedClusterStatus{
		Verdict: "lost", Cause: "one-zone", Since: &since, Counts: []v1alpha1.NodeCount{{Nodes: 5, Silent: 3}, {Zone: "z", Nodes: 3, Silent: 3}},
		Zones: []v1alpha1.WatchedZone{{Name: "z", Verdict: "lost", Cause: "<b>"}},
	})
	s := newSource(callOf(wellAPI()), f.open)
	if err := s.once(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.readClusters(t.Context())
	var page bytes.Buffer
	if err := s.snapshot(&page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"shoot/a", "lost (one-zone)", "zone z: lost (&lt;b&gt;), 3 of 3 nodes silent", "<b>Deployment/d1</b>: 2 replicas, next: scale-down, waits for Deployment/d0",
		"sondectl watchdog explain a -n shoot", "More are not shown",
	} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("it lacks %q:\n%s", want, &page)
		}
	}
}

// While a page is open, the clusters are read with pauses. An API server that is slow or away costs no other section,
// and dependants for which the time is too short are not read, rather than failing.
func TestClustersAreReadWithPauses(t *testing.T) {
	f := &fakeClusters{takes: time.Second}
	f.add("a", 3, v1alpha1.WatchedClusterStatus{Verdict: "lost"})
	f.add("b", 8, v1alpha1.WatchedClusterStatus{Verdict: "seen"})
	watchClusters(t, callOf(wellAPI()), f.open, func(s *source) {
		lookFor(s, 10*time.Minute-10*time.Second)
		if n := f.lists.Load(); n != 12 { // 5 s, and 45 s of pause
			t.Errorf("%d readings in ten minutes, want one in 50 seconds", n)
		}
		section, data, _ := s.section(sectionWatchdog)
		var got Watchdog
		if err := json.Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
		if got.Rows[0].Unread || !got.Rows[1].Unread || time.Until(*section.Due) <= 0 {
			t.Errorf("not read: %t, %t; due in %s", got.Rows[0].Unread, got.Rows[1].Unread, time.Until(*section.Due))
		}
		f.away.Store(true)
		lookFor(s, 2*time.Minute)
		later, _, _ := s.section(sectionWatchdog)
		if later.Error != "no response" || later.ReadAt == nil || !later.ReadAt.Equal(*section.ReadAt) || later.Revision == "" {
			t.Errorf("after the API server went away: %+v", later)
		}
		if problems, _, _ := s.section("problems"); problems.Error != "" {
			t.Errorf("another section says %q", problems.Error)
		}
		lists := f.lists.Load()
		time.Sleep(time.Hour)
		if section, _, _ := s.section(sectionWatchdog); f.lists.Load() > lists+1 || time.Until(*section.Due) > 0 {
			t.Errorf("%d readings without a page, due in %s", f.lists.Load()-lists, time.Until(*section.Due))
		}
	})
}

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// lookPause is the interval between readings of the nodes, which is their error, and between two watches of
// dependants.
const lookPause = 200 * time.Millisecond

// sightings are observed changes of nodes and dependants, with their times since the start.
type sightings struct {
	t *testing.T

	mu    sync.Mutex
	began time.Time // of the test's actions
	uids  map[string]types.UID
	// replicas has the current replicas of each dependant, and changes has their changes, such as
	// "controller 0".
	replicas map[string]int32
	changes  []sighting
	// unknown has nodes when they first became Unknown; deleted has nodes that no longer exist, or were replaced.
	unknown, deleted []sighting
}

type sighting struct {
	what string
	at   time.Duration
}

func (s sighting) String() string {
	return fmt.Sprintf("%s after %s", s.what, s.at.Round(100*time.Millisecond))
}

// follow observes the nodes and the dependants until the test ends. It retries if the API server is stopped.
func follow(t *testing.T) *sightings {
	t.Helper()
	uids, err := nodeUIDs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := &sightings{t: t, began: time.Now(), uids: uids, replicas: maps.Clone(original)}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, look := range []func(context.Context){s.lookAtNodes, s.watchReplicas} {
		running.Go(func() {
			ticker := time.NewTicker(lookPause)
			defer ticker.Stop()
			for ctx.Err() == nil {
				look(ctx)
				select {
				case <-ctx.Done():
				case <-ticker.C:
				}
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return s
}

// lookAtNodes reads the nodes once.
func (s *sightings) lookAtNodes(ctx context.Context) {
	nodes, err := cluster.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	there := map[string]types.UID{}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		there[n.Name] = n.UID
		if readyOf(n) == corev1.ConditionUnknown {
			s.once(&s.unknown, n.Name)
		}
	}
	for name, uid := range s.uids {
		if there[name] != uid {
			s.once(&s.deleted, name)
		}
	}
}

// watchReplicas records each change of dependants, in order, until the watch ends.
func (s *sightings) watchReplicas(ctx context.Context) {
	w, err := cluster.client.AppsV1().Deployments(watchdogNamespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if d, is := e.Object.(*appsv1.Deployment); is {
			s.noteReplicas(d.Name, *d.Spec.Replicas)
		}
	}
}

func (s *sightings) noteReplicas(name string, n int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if before, follows := s.replicas[name]; follows && n != before {
		s.replicas[name] = n
		s.changes = append(s.changes, sighting{fmt.Sprint(name, " ", n), time.Since(s.began)})
	}
}

// once appends a sighting, unless the list has one of the same name.
func (s *sightings) once(list *[]sighting, name string) {
	if !slices.ContainsFunc(*list, func(o sighting) bool { return o.what == name }) {
		*list = append(*list, sighting{name, time.Since(s.began)})
	}
}

// begin restarts the time of all sightings.
func (s *sightings) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began, s.unknown, s.changes = time.Now(), nil, nil
}

// scaled returns the changes of each dependant's replicas, in order.
func (s *sightings) scaled() map[string][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string][]string{}
	for _, c := range s.changes {
		name, n, _ := strings.Cut(c.what, " ")
		all[name] = append(all[name], n)
	}
	return all
}

// all returns when nodes first became Unknown, when dependants were scaled, and when nodes were
// deleted.
func (s *sightings) all() (unknown, changes, deleted []sighting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.unknown), slices.Clone(s.changes), slices.Clone(s.deleted)
}

// waitUnknown waits until this many nodes were Unknown.
func (s *sightings) waitUnknown(nodes int) {
	s.t.Helper()
	wait(s.t, fmt.Sprintf("%d nodes to be Unknown", nodes), func() error {
		if unknown, _, _ := s.all(); len(unknown) < nodes {
			return fmt.Errorf("they are %v", unknown)
		}
		return nil
	})
}

// waitDeleted waits until this many nodes were deleted.
func (s *sightings) waitDeleted(nodes int) {
	s.t.Helper()
	wait(s.t, fmt.Sprintf("%d nodes to be deleted", nodes), func() error {
		if _, _, deleted := s.all(); len(deleted) < nodes {
			return fmt.Errorf("they are %v", deleted)
		}
		return nil
	})
}

// checkNothing fails the test if a dependant was scaled, or a node was deleted.
func (s *sightings) checkNothing(when string) {
	s.t.Helper()
	s.checkNoneDeleted(when)
	if _, changes, _ := s.all(); len(changes) > 0 {
		s.t.Errorf("%s: dependants were scaled: %v", when, changes)
	}
}

// checkNoneDeleted fails the test if a node was deleted.
func (s *sightings) checkNoneDeleted(when string) {
	s.t.Helper()
	if _, _, deleted := s.all(); len(deleted) > 0 {
		s.t.Errorf("%s: nodes were deleted: %v", when, deleted)
	}
}

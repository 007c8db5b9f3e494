package objects

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
)

// dataplaneWith returns a Dataplane with that many outbounds, created that many seconds after the first.
func dataplaneWith(name string, second, outbounds int) *v1alpha1.Dataplane {
	d := aDataplane("web", nil)
	d.Name, d.CreationTimestamp = name, metav1.NewTime(time.Unix(int64(second), 0))
	for i := range outbounds {
		d.Spec.Networking.Outbound = append(d.Spec.Networking.Outbound, mesh.Outbound{Port: uint32(10_000 + i), Tags: mesh.Tags{mesh.TagService: fmt.Sprint("s", i)}})
	}
	return d
}

// An object from before the bounds existed is used unchanged, and its status is Invalid.
func TestObjectsOfAnEarlierRelease(t *testing.T) {
	tags := map[string]string{}
	for i := range mesh.MaxTags {
		tags[fmt.Sprint("t", i)] = "v"
	}
	many := aMesh("default", "ca-1")
	for i := range mesh.MaxBackends {
		many.Spec.MTLS.Backends = append(many.Spec.MTLS.Backends, mesh.Backend{Name: fmt.Sprint("b", i), Type: mesh.BackendBuiltin})
	}
	tagged := aDataplane("web", nil)
	maps.Copy(tagged.Spec.Networking.Inbound[0].Tags, tags)
	for name, tc := range map[string]struct {
		add  func(s *Objects) error
		ref  reference
		want string
	}{
		"the most outbounds": {func(s *Objects) error { return s.dataplanes.Add(dataplaneWith("vm", 0, 5000)) }, reference{resourceDataplanes, watch.Key{Namespace: "shop", Name: "vm"}}, ""},
		"more outbounds": {
			func(s *Objects) error { return s.dataplanes.Add(dataplaneWith("vm", 0, 6000)) }, reference{resourceDataplanes, watch.Key{Namespace: "shop", Name: "vm"}},
			`is in use, but exceeds the limits for new objects: networking.outbound: "6000 items": must have at most 5000 items`,
		},
		"many tags": {
			func(s *Objects) error { return s.dataplanes.Add(tagged) }, reference{resourceDataplanes, watch.Key{Namespace: "shop", Name: "vm"}},
			`is in use, but exceeds the limits for new objects: networking.inbound[0].tags: "33 items": must have at most 32 items`,
		},
		"many backends": {
			func(s *Objects) error { return s.meshes.Add(many) }, reference{resourceMeshes, watch.Key{Name: "default"}},
			`is in use, but exceeds the limits for new objects: mtls.backends: "101 items": must have at most 100 items`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			meshOf := "default"
			s, c := newObjects(t, &meshOf)
			must(t, s.meshes.Add(aMesh("default", "ca-1")))
			c.take()
			must(t, tc.add(s))
			if calls := c.take(); len(calls) != 1 || !strings.HasPrefix(calls[0], "set ") {
				t.Errorf("calls %q, want the Dataplane used", calls)
			}
			reason := map[bool]string{true: "Accepted", false: "Invalid"}[tc.want == ""]
			if is := s.conditionOf(tc.ref, s.get(tc.ref)); is.Reason != reason || is.Message != tc.want {
				t.Errorf("condition %s %q, want %s %q", is.Reason, is.Message, reason, tc.want)
			}
			if p := s.Problems(); tc.want == "" != (len(p) == 0) || tc.want != "" && (p[0].Text != tc.want || !p[0].Bounds) {
				t.Errorf("problems %+v, want %q", p, tc.want)
			}
		})
	}
}

// The oldest Dataplanes of a namespace are served. The others are Invalid, and take almost no memory.
func TestDataplanesBeyondTheShare(t *testing.T) {
	meshOf := "default"
	s, c := newObjects(t, &meshOf)
	must(t, s.meshes.Add(aMesh("default", "ca-1")))
	n := 0
	for s.dataplanes.Beyond()["shop"] == 0 {
		must(t, s.dataplanes.Add(dataplaneWith(fmt.Sprint("vm-", n), 1000-n, 5000))) // each is older than the previous ones
		n++
	}
	elsewhere := dataplaneWith("vm", 2000, 10)
	elsewhere.Namespace = "bank"
	must(t, s.dataplanes.Add(elsewhere))
	calls := c.take()
	for _, want := range []string{"delete Dataplane default/vm-0.shop", "set Dataplane default/vm.bank", fmt.Sprintf("set Dataplane default/vm-%d.shop", n-1)} {
		if !slices.Contains(calls, want) {
			t.Errorf("calls %q, want %q", calls, want)
		}
	}
	ref := reference{resourceDataplanes, watch.Key{Namespace: "shop", Name: "vm-0"}}
	const text = "does not count: only the oldest objects of a namespace count, up to 64 MiB of memory"
	condition := s.conditionOf(ref, s.get(ref))
	if condition.Reason != "Invalid" || condition.Message != text {
		t.Errorf("condition %s %q", condition.Reason, condition.Message)
	}
	if got := watch.Size(s.get(ref)); got > 200 {
		t.Errorf("%d bytes of it are kept", got)
	}
	written := dataplaneWith("vm-0", 1000, 5000)
	written.Status.Conditions = []metav1.Condition{condition}
	must(t, s.dataplanes.Update(written))
	if is := s.get(ref).accepted; is == nil || is.Message != text {
		t.Errorf("the written status is not recognized: %+v", is)
	}
	if calls := c.take(); len(calls) != 0 {
		t.Errorf("calls %q, want none", calls)
	}
}

// The status that the control plane writes does not change the size of an object. Otherwise, a status could push an
// object beyond the share, and the next status back.
func TestStatusTakesNoShare(t *testing.T) {
	share := shareOf(0)
	r := newRecord(&mesh.Mesh{Name: "default"}, aMesh("default", "ca-1"), v1alpha1.Status{})
	before := share.Takes(&r)
	r.accepted = &metav1.Condition{Message: strings.Repeat("x", maxMessage)}
	if after := share.Takes(&r); after != before {
		t.Errorf("size %d with a status, and %d without", after, before)
	}
}

// Memory is bounded even if one namespace has as many Dataplanes as possible.
func TestMemoryOfDataplanes(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for name, change := range map[string]func(*v1alpha1.Dataplane){
		"labels":           func(d *v1alpha1.Dataplane) { d.Labels = map[string]string{"a": strings.Clone(long)} },
		"a value of a tag": func(d *v1alpha1.Dataplane) { d.Spec.Networking.Inbound[0].Tags["a"] = strings.Clone(long) },
		"names of services": func(d *v1alpha1.Dataplane) {
			d.Spec.Networking.Outbound = []mesh.Outbound{{Port: 1, Tags: mesh.Tags{mesh.TagService: strings.Clone(long)}}}
		},
		"what is not valid": func(d *v1alpha1.Dataplane) { d.Spec.Networking.Address = strings.Clone(long) },
		"a long message": func(d *v1alpha1.Dataplane) {
			d.Status.Conditions = []metav1.Condition{{Type: "Accepted", Message: strings.Clone(long)}}
		},
		"managed fields": func(d *v1alpha1.Dataplane) {
			d.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: strings.Clone(long)}}
		},
		"other annotations": func(d *v1alpha1.Dataplane) { d.Annotations = map[string]string{"a": strings.Clone(long)} },
	} {
		t.Run(name, func(t *testing.T) {
			meshOf := "default"
			s, _ := newObjects(t, &meshOf)
			for i := range 80 {
				d := dataplaneWith(fmt.Sprint("vm-", i), i, 0)
				change(d)
				must(t, s.dataplanes.Add(d))
			}
			kept := 0
			for _, key := range s.dataplanes.Keys() {
				kept += watch.Size(s.dataplanes.Get(key))
			}
			for _, p := range s.Problems() {
				kept += len(p.Text)
			}
			if kept > 64<<20 {
				t.Errorf("%d MiB are kept", kept>>20)
			}
		})
	}
}

// A namespace with many waiting statuses does not delay the statuses of other namespaces.
func TestStatusesTakeTurns(t *testing.T) {
	meshOf := "default"
	s, _ := newObjects(t, &meshOf)
	of := func(namespace string, i int) reference {
		return reference{resourceDataplanes, watch.Key{Namespace: namespace, Name: fmt.Sprint("vm-", i)}}
	}
	for i := range 10 * writtenAtOnce {
		s.unwritten[of("greedy", i)] = struct{}{}
	}
	for i := range 3 {
		s.unwritten[of("modest", i)] = struct{}{}
	}
	first := s.takeUnwritten()
	modest := 0
	for _, ref := range first {
		if ref.Namespace == "modest" {
			modest++
		}
	}
	if len(first) != writtenAtOnce || modest != 3 || len(s.unwritten) != 9*writtenAtOnce+3 {
		t.Errorf("%d statuses are written first, %d of the other namespace, and %d remain", len(first), modest, len(s.unwritten))
	}
	select {
	case <-s.wake:
	default:
		t.Error("the others are not retried")
	}
}

// refuses is an API server that rejects every status.
type refuses struct{ asked atomic.Int32 }

func (r *refuses) RoundTrip(*http.Request) (*http.Response, error) {
	r.asked.Add(1)
	return nil, errors.New("refused")
}

// Failed writes of statuses are retried at a bounded rate, however many there are.
func TestFailedStatusesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var api refuses
		s, err := New(Options{
			Config: &rest.Config{Host: "http://api.invalid", Transport: &api, QPS: -1}, Builder: &calls{}, Name: "objects",
			MeshOf: func(string) string { return "default" }, Recorded: func() map[string]*mesh.Mesh { return nil },
		})
		must(t, err)
		const all = 3 * writtenAtOnce
		for i := range all {
			must(t, s.dataplanes.Add(dataplaneWith(fmt.Sprint("vm-", i), i, 0)))
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.RunStatus(ctx) }()
		<-time.After(statusRetry + statusRetry/2)
		cancel()
		must(t, <-ended)
		if got := api.asked.Load(); got != 2*all {
			t.Errorf("%d attempts at once and in one retry, want %d", got, 2*all)
		}
		if len(s.unwritten) != all {
			t.Errorf("the next leader has %d unwritten statuses, want %d", len(s.unwritten), all)
		}
	})
}

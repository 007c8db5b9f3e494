package watchdog

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/watchdog/probe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// seed is an API server with WatchedClusters in namespace n, and its watchdog. No cluster can be probed, since the
// Secrets are missing. Requests for objects whose names begin with hangs get no response.
type seed struct {
	*Watchdog
	t   *testing.T
	log *bytes.Buffer

	mu       sync.Mutex // guards the following fields
	objects  map[string]*v1alpha1.WatchedCluster
	probes   map[string]int // by Secret
	hanging  map[string]int // requests, by object
	statuses int            // number of written statuses
	applies  int            // number of requests to apply an object
	refuses  bool           // reject requests to apply an object
}

func newSeed(t *testing.T, change ...func(*Watchdog)) *seed {
	t.Helper()
	s := &seed{t: t, log: &bytes.Buffer{}, objects: map[string]*v1alpha1.WatchedCluster{}, probes: map[string]int{}, hanging: map[string]int{}}
	s.Watchdog = &Watchdog{o: Options{Namespace: "n", Name: "dog", Logger: slog.New(slog.NewJSONHandler(s.log, nil))}, registry: prometheus.NewRegistry(), budget: probe.NewBudget()}
	for _, ch := range change {
		ch(s.Watchdog)
	}
	if err := s.connect(&rest.Config{Host: "http://seed", Dial: virtual.ServeHTTP(t, s, nil)}); err != nil {
		t.Fatal(err)
	}
	s.fleet = newFleet(s.Watchdog)
	s.metrics = newMetrics(s.registry, s.fleet)
	if err := s.clusters.Replace(nil, "1"); err != nil {
		t.Fatal(err)
	}
	if s.shoots != nil {
		if err := s.shoots.Replace(nil, "1"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var telling sync.WaitGroup
	telling.Go(func() { _ = s.events.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		telling.Wait()
	})
	return s
}

// ServeHTTP implements http.Handler.
func (s *seed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	name, secret := path[len(path)-1], strings.Contains(r.URL.Path, "/secrets/")
	if secret {
		s.count(func() { s.probes[name]++ })
	}
	if strings.HasPrefix(name, "hangs") {
		s.count(func() { s.hanging[name]++ })
		<-r.Context().Done()
		s.count(func() { s.hanging[name]-- })
	}
	switch {
	case secret:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodPatch && path[len(path)-2] == resource:
		s.apply(w, r, name)
	case r.Method == http.MethodPut:
		var o v1alpha1.WatchedCluster
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
			s.t.Error(err)
		}
		s.count(func() {
			s.statuses++
			s.objects[o.Name].Status = o.Status
			s.answer(w, o.Name)
		})
	default:
		s.count(func() { s.answer(w, name) })
	}
}

// apply creates or replaces an object.
func (s *seed) apply(w http.ResponseWriter, r *http.Request, name string) {
	o := &v1alpha1.WatchedCluster{}
	if err := json.NewDecoder(r.Body).Decode(o); err != nil {
		s.t.Error(err)
	}
	o.UID, o.Generation = types.UID(name), 1
	refuses := false
	s.count(func() {
		s.applies++
		if refuses = s.refuses; refuses {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		s.objects[name] = o
		s.answer(w, name)
	})
	if refuses {
		return
	}
	if err := s.clusters.Add(o.DeepCopy()); err != nil {
		s.t.Error(err)
	}
}

func (s *seed) count(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

func (s *seed) answer(w http.ResponseWriter, name string) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(s.objects[name]); err != nil {
		s.t.Error(err)
	}
}

// put writes an object for a cluster with a Secret.
func (s *seed) put(name, secret string) {
	s.t.Helper()
	o := &v1alpha1.WatchedCluster{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "WatchedCluster"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name), Generation: 1},
		Spec: v1alpha1.WatchedClusterSpec{
			KubeconfigSecretName: secret, Settings: v1alpha1.WatchSettings{InitialDelay: &metav1.Duration{}},
			Dependants: []v1alpha1.WatchedDependant{{Ref: v1alpha1.DependantRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "kcm"}, ScaleUp: &v1alpha1.ScaleInfo{}, ScaleDown: &v1alpha1.ScaleInfo{}}},
		},
	}
	s.count(func() {
		if before := s.objects[name]; before != nil {
			o.Generation, o.Status = before.Generation+1, before.Status
		}
		s.objects[name] = o
	})
	if err := s.clusters.Add(o.DeepCopy()); err != nil {
		s.t.Fatal(err)
	}
}

// term makes the watchdog lead, and returns a function that ends the term.
func (s *seed) term(epoch int64) (end func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan error)
	go func() { ended <- s.fleet.lead(ctx, epoch) }()
	return func() {
		s.t.Helper()
		cancel()
		if err := <-ended; err != nil {
			s.t.Errorf("lead() = %v", err)
		}
	}
}

// probed returns the number of reads of a Secret, and of running reads.
func (s *seed) probed(secret string) (n, hanging int) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.probes[secret], s.hanging[secret]
}

// One process leads three times. In each term, clusters are probed at their interval with the term's epoch, and after
// it nothing more happens.
func TestTerms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSeed(t)
		s.put("a", "none")
		for epoch := range int64(3) {
			before, _ := s.probed("none")
			end := s.term(epoch + 1)
			time.Sleep(time.Minute)
			n, _ := s.probed("none")
			if n -= before; n < 5 || n > 7 {
				t.Errorf("%d probes in a minute of term %d, want one each 10 to 12 s", n, epoch+1)
			}
			s.count(func() {
				if got := s.objects["a"].Status; got.Epoch != epoch+1 || got.Verdict != "unknown" {
					t.Errorf("the status in term %d is %+v", epoch+1, got)
				}
			})
			end()
			if all := s.fleet.all(); len(all) > 0 {
				t.Errorf("%v are watched after the term", all)
			}
			last, _ := s.probed("none")
			time.Sleep(time.Minute)
			if n, _ := s.probed("none"); n != last {
				t.Errorf("%d probes after term %d", n-last, epoch+1)
			}
		}
		for line := range strings.Lines(s.log.String()) {
			if !strings.Contains(line, `"msg":"watching cluster"`) && !strings.Contains(line, `"msg":"probe failed`) && !strings.Contains(line, `"msg":"verdict changed"`) {
				t.Errorf("the log says %s", line)
			}
		}
	})
}

// A cluster whose probe or status write hangs does not delay others, or the end of a term.
func TestHangingClusters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSeed(t)
		for i := range 100 {
			s.put(fmt.Sprint("a-", i), "hangs")
		}
		for i := range atOnce - 1 {
			s.put(fmt.Sprint("hangs-", i), "") // the empty Secret is invalid
		}
		end := s.term(1)
		time.Sleep(time.Second)
		s.put("z", "none")
		n, _ := s.probed("none")
		if _, hanging := s.probed("hangs"); n != 1 || hanging != 100 {
			t.Errorf("%d probes of a cluster beside %d that hang, want 1 and 100", n, hanging)
		}
		end()
		if _, hanging := s.probed("hangs"); hanging != 0 {
			t.Errorf("%d probes go on after the term", hanging)
		}
	})
}

// If an object changes or is deleted during a probe, that takes effect at once.
func TestChangesDuringAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSeed(t)
		s.put("a", "hangs-1")
		end := s.term(1)
		defer end()
		time.Sleep(time.Second)
		s.put("a", "hangs-2")
		if _, hanging := s.probed("hangs-1"); hanging != 0 {
			t.Error("the probe by the Secret of before goes on")
		}
		if n, hanging := s.probed("hangs-2"); n != 1 || hanging != 1 {
			t.Errorf("%d probes by the new Secret, want one", n)
		}
		s.count(func() { s.statuses = 0 })
		if err := s.clusters.Delete(s.objects["a"]); err != nil {
			t.Fatal(err)
		}
		if _, hanging := s.probed("hangs-2"); hanging != 0 || len(s.fleet.all()) > 0 || s.statuses > 0 {
			t.Errorf("it is deleted: %d probes go on, %v are watched, %d statuses written", hanging, s.fleet.all(), s.statuses)
		}
		time.Sleep(5 * time.Minute)
		if n, _ := s.probed("hangs-2"); n != 1 {
			t.Errorf("%d probes after it was deleted", n-1)
		}
	})
}

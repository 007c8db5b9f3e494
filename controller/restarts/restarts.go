// Package restarts grants restarts of containers whose guarded liveness probe fails (package restartbudget). Every replica follows what
// decides about restarts, and tells its agents; the one that leads decides, and writes RestartGrants.
package restarts

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// Options of Restarts. All are required but Memory, Settings, Registerer and the Loops.
type Options struct {
	// Watching and Grants are clients of the API server without a timeout, the second one of group sonde.dev; Writing is that with one.
	Watching        kubernetes.Interface
	Grants, Writing rest.Interface
	// Status is as Writing, for the status of RestartBudgets: the limit of its rate delays no grant.
	Status rest.Interface
	// Agents returns the agents of pods. It is called once Run or Lead is.
	Agents func() Agents
	// Proxy returns the proxy of a pod, "" if the pod is unknown.
	Proxy  func(pod watch.Key) mesh.ID
	Logger *slog.Logger
	// Pods writes conditions of pods, and reads those that the webhook has missed, with a timeout.
	Pods corev1.PodsGetter
	// Namespaces returns those where the webhook injects, or pods are to be guarded, with whether they are unless they say something else.
	Namespaces func() map[string]bool
	// Frozen says why nothing may follow from silence, "" if something may. Default: something may.
	Frozen func() string
	// Record writes an event, later. It returns at once.
	Record func(events.Event)
	// Lease of the control plane, about which are the events that are about no workload.
	Lease watch.Key
	// Registerer of the metrics. Default none.
	Registerer prometheus.Registerer
	// Memory is how many bytes this process may use, of which a namespace has a share. Default 512 MiB.
	Memory uint64
	// Settings until Configure. They must be valid.
	Settings restartbudget.Settings
	// Loop watches the decisions of Lead, Writes what it sends.
	Loop, Writes *heartbeat.Loop
}

// Restarts has the grants that there are, and what else decides about restarts.
type Restarts struct {
	o        Options
	grants   *watch.Store[*v1alpha1.RestartGrant, grant]
	cluster  *cluster
	wake     run.Signal // something has changed that Lead decides by
	plan     run.Signal // something has changed that policies follow from
	settings atomic.Pointer[restartbudget.Settings]
	metrics  *metrics
	round    atomic.Pointer[Round]
	missed   atomic.Int64 // liveness probes of pods without a sidecar

	mu       sync.Mutex
	granted  map[watch.Key]map[watch.Key]*grant // by pod, and by grant
	policies map[watch.Key]*agentv1.Restarts    // see cluster.policies; nil until all has been read
}

// grant is what is kept of a RestartGrant.
type grant struct {
	restartbudget.Grant
	epoch   int64 // of the last leader that has made it valid
	writer  int64 // epoch of the leader that has granted it
	created time.Time
	pod     watch.Key
	version string // resourceVersion
}

// New returns Restarts. Nothing is read before Run. It panics if a metric is registered already.
func New(o Options) *Restarts {
	if o.Frozen == nil {
		o.Frozen = func() string { return "" }
	}
	r := &Restarts{o: o, wake: run.NewSignal(), plan: run.NewSignal(), granted: map[watch.Key]map[watch.Key]*grant{}}
	r.settings.Store(&o.Settings)
	r.cluster = newCluster(o.Watching, o.Grants, o.Memory, r.clusterChanged, r.podChanged, o.Logger)
	r.grants = watch.New(watch.Kind[*v1alpha1.RestartGrant, grant]{
		Client: o.Grants, Resource: resource, New: &v1alpha1.RestartGrant{}, Record: r.read, Changed: r.changed, Synced: r.clusterChanged,
	})
	r.metrics = newMetrics(r, o.Registerer)
	return r
}

// resource is the plural name of RestartGrants.
const resource = "restartgrants"

// Run follows the grants and the cluster until ctx ends, and then returns nil.
func (r *Restarts) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, task := range []func(context.Context) error{r.grants.Run, r.cluster.run, r.runPolicies} {
		group.Go(func() error { return task(ctx) })
	}
	return group.Wait()
}

// Configure replaces the settings, which must be valid.
func (r *Restarts) Configure(s restartbudget.Settings) {
	r.settings.Store(&s)
	r.clusterChanged()
}

// missing returns what has not been read yet, nil once all has.
func (r *Restarts) missing() error { return errors.Join(r.cluster.missing(), r.grants.Missing()) }

// unread says which part of what is decided by may be older than what the API server has, "" if none is: writes succeed again after an outage before each
// watch is open, which pauses between its attempts.
func (r *Restarts) unread() string {
	if lost := watch.First(r.grants.Lost(), r.cluster.lost()); lost.Err != nil {
		return lost.Err.Error()
	}
	return ""
}

// clusterChanged has decisions and policies made anew.
func (r *Restarts) clusterChanged() {
	r.wakeLead()
	r.plan.Set()
}

// read decodes a RestartGrant. One that the leader cannot have written is logged and left out.
func (r *Restarts) read(o *v1alpha1.RestartGrant) (grant, bool) {
	g, err := grantOf(o)
	if err != nil {
		r.o.Logger.Error("RestartGrant not used", "namespace", o.Namespace, "name", o.Name, "err", err)
		return grant{}, false
	}
	return g, true
}

func (r *Restarts) changed(key watch.Key, before, now *grant) {
	pod := cmp.Or(now, before).pod
	r.mu.Lock()
	if now == nil {
		delete(r.granted[pod], key)
	} else {
		if r.granted[pod] == nil {
			r.granted[pod] = map[watch.Key]*grant{}
		}
		r.granted[pod][key] = now
	}
	if len(r.granted[pod]) == 0 {
		delete(r.granted, pod)
	}
	r.mu.Unlock()
	r.tell(pod)
	r.wakeLead()
}

// wakeLead has Lead decide soon.
func (r *Restarts) wakeLead() { r.wake.Set() }

// podChanged has the agent of a pod told what is granted to it now, and not to an earlier pod of its name, nor for an earlier restart.
func (r *Restarts) podChanged(pod watch.Key) {
	r.mu.Lock()
	granted := len(r.granted[pod]) > 0
	r.mu.Unlock()
	if granted {
		r.tell(pod)
	}
}

// ofPod returns what the agent of a pod is to be told, nil while not all has been read that says so.
func (r *Restarts) ofPod(pod watch.Key) *agentv1.Restarts {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.policies == nil {
		return nil
	}
	m := &agentv1.Restarts{WhenAway: &agentv1.WhenAway{}}
	if policy := r.policies[pod]; policy != nil {
		m.Mode, m.WhenAway = policy.GetMode(), policy.GetWhenAway()
	}
	now := r.cluster.pods.Get(pod)
	last := map[string]watch.Key{}
	for key, g := range r.granted[pod] {
		if before, is := last[g.ID.Name]; now.has(g.ID) && (!is || r.granted[pod][before].ID.Before(g.ID)) {
			last[g.ID.Name] = key
		}
	}
	for name, key := range last { // that of an earlier try is over, which may not be written yet
		if g := r.granted[pod][key]; g.Outcome == restartbudget.Open && !g.DryRun {
			m.Grants = append(m.Grants, &agentv1.RestartGrant{Name: key.Name, Container: name, Epoch: g.epoch})
		}
	}
	slices.SortFunc(m.GetGrants(), func(a, b *agentv1.RestartGrant) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return m
}

// Package restarts grants restarts of containers whose guarded liveness probe fails (package restartbudget). Every
// replica follows grants and budgets, and sends its agents the results. The leader decides, and writes RestartGrants.
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
	// Watching and Grants are clients of the API server without a timeout, Grants for group sonde.dev. Writing is Grants
	// with a timeout.
	Watching        kubernetes.Interface
	Grants, Writing rest.Interface
	// Status is a client like Writing for the status of RestartBudgets, with a rate limit of its own, so as not to delay
	// grants.
	Status rest.Interface
	// Agents returns the agents of pods. Run and Lead are the first to call it.
	Agents func() Agents
	// Proxy returns the proxy of a pod, "" if the pod is unknown.
	Proxy  func(pod watch.Key) mesh.ID
	Logger *slog.Logger
	// Pods writes conditions of pods, and lists pods that the webhook missed, with a timeout.
	Pods corev1.PodsGetter
	// Namespaces returns the namespaces where the webhook injects, or where pods should be guarded. The value says
	// whether pods without an annotation are guarded.
	Namespaces func() map[string]bool
	// Frozen returns why silent nodes and proxies must not be treated as dead, "" if they may. Default: always "".
	Frozen func() string
	// Record queues an event. It returns at once.
	Record func(events.Event)
	// Lease of the control plane: events that are not about a single workload are about this object.
	Lease watch.Key
	// Registerer of the metrics. Default none.
	Registerer prometheus.Registerer
	// Memory is the memory limit of this process in bytes. Each namespace may use a share of it. Default 512 MiB.
	Memory uint64
	// Settings and Hold apply until Configure. They must be valid. Default of Hold mesh.HoldErrored.
	Settings restartbudget.Settings
	Hold     mesh.LivenessHold
	// Loop watches the decisions of Lead, Writes its requests.
	Loop, Writes *heartbeat.Loop
}

// Restarts has the grants, and the other inputs of decisions about restarts.
type Restarts struct {
	o        Options
	grants   *watch.Store[*v1alpha1.RestartGrant, grant]
	cluster  *cluster
	wake     run.Signal // an input of Lead has changed
	plan     run.Signal // an input of policies has changed
	settings atomic.Pointer[restartbudget.Settings]
	hold     atomic.Pointer[mesh.LivenessHold]
	metrics  *metrics
	round    atomic.Pointer[Round]
	missed   atomic.Int64 // liveness probes of pods without a sidecar

	mu       sync.Mutex
	granted  map[watch.Key]map[watch.Key]*grant // by pod, and by grant
	policies map[watch.Key]*agentv1.Restarts    // see cluster.policies; nil until all has been read
}

// grant is the record of a RestartGrant.
type grant struct {
	restartbudget.Grant
	epoch   int64 // of the last leader that confirmed it
	writer  int64 // epoch of the leader that granted it
	created time.Time
	pod     watch.Key
	version string // resourceVersion
}

// New returns Restarts. It reads nothing before Run. It panics if a metric is already registered.
func New(o Options) *Restarts {
	if o.Frozen == nil {
		o.Frozen = func() string { return "" }
	}
	r := &Restarts{o: o, wake: run.NewSignal(), plan: run.NewSignal(), granted: map[watch.Key]map[watch.Key]*grant{}}
	r.settings.Store(&o.Settings)
	r.hold.Store(new(cmp.Or(o.Hold, mesh.HoldErrored)))
	r.cluster = newCluster(o.Watching, o.Grants, o.Memory, r.clusterChanged, r.podChanged, o.Logger)
	r.grants = watch.New(watch.Kind[*v1alpha1.RestartGrant, grant]{
		Client: o.Grants, Resource: resource, New: &v1alpha1.RestartGrant{}, Record: r.read, Changed: r.changed,
		Synced: r.clusterChanged,
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

// Configure replaces the settings, and the way to hold failures. Both must be valid.
func (r *Restarts) Configure(s restartbudget.Settings, hold mesh.LivenessHold) {
	r.settings.Store(&s)
	hold = cmp.Or(hold, mesh.HoldErrored)
	if before := r.hold.Swap(&hold); *before != hold {
		for _, pod := range r.cluster.pods.Keys() { // unguarded pods, too, whose agents may be unable to check
			r.tell(pod)
		}
	}
	r.clusterChanged()
}

// Hold returns the way to hold failures.
func (r *Restarts) Hold() mesh.LivenessHold { return *r.hold.Load() }

// holdsOf has the values of mesh.LivenessHold for agents.
var holdsOf = map[mesh.LivenessHold]agentv1.Restarts_Hold{mesh.HoldErrored: agentv1.Restarts_ERRORED,
	mesh.HoldWarning: agentv1.Restarts_WARNING}

// missing returns what has not been read yet, nil once all has been read.
func (r *Restarts) missing() error { return errors.Join(r.cluster.missing(), r.grants.Missing()) }

// unread returns which input of decisions may be outdated, "" if all are current. After an outage, writes may succeed
// before all watches, which back off, are open again.
func (r *Restarts) unread() string {
	if lost := watch.First(r.grants.Lost(), r.cluster.lost()); lost.Err != nil {
		return lost.Err.Error()
	}
	return ""
}

// clusterChanged wakes Lead and the computation of policies.
func (r *Restarts) clusterChanged() {
	r.wakeLead()
	r.plan.Set()
}

// read decodes a RestartGrant. It logs and drops one that a leader cannot have written.
func (r *Restarts) read(o *v1alpha1.RestartGrant) (grant, bool) {
	g, err := grantOf(o)
	if err != nil {
		r.o.Logger.Error("ignoring an invalid RestartGrant", "namespace", o.Namespace, "name", o.Name, "err", err)
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

// wakeLead makes Lead decide soon.
func (r *Restarts) wakeLead() { r.wake.Set() }

// podChanged wakes the session of a pod's agent: grants for an earlier pod of the same name, or for an earlier restart,
// no longer apply.
func (r *Restarts) podChanged(pod watch.Key) {
	r.mu.Lock()
	granted := len(r.granted[pod]) > 0
	r.mu.Unlock()
	if granted {
		r.tell(pod)
	}
}

// ofPod returns the message for the agent of a pod, nil before all of its input has been read.
func (r *Restarts) ofPod(pod watch.Key) *agentv1.Restarts {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.policies == nil {
		return nil
	}
	m := &agentv1.Restarts{WhenAway: &agentv1.WhenAway{}, Hold: holdsOf[r.Hold()]}
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
	for name, key := range last { // the grant of an earlier try has ended, even if its status lags
		if g := r.granted[pod][key]; g.Outcome == restartbudget.Open && !g.DryRun {
			m.Grants = append(m.Grants, &agentv1.RestartGrant{Name: key.Name, Container: name, Epoch: g.epoch})
		}
	}
	slices.SortFunc(m.GetGrants(), func(a, b *agentv1.RestartGrant) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return m
}

package dashboard

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	grpcstatus "google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/cmd/sondectl/status"
)

// State is the state of a probe. Nothing that is not reported counts as passing.
type State string

// States, the worst first.
const (
	Failing    State = "failing"
	Held       State = "held"        // a liveness probe fails, and its restart is withheld
	Restarting State = "restarting"  // a restart is granted, or in progress
	Errored    State = "errored"     // no check has come to a verdict
	CannotFail State = "cannot fail" // Envoy answers it, whether the application does or not
	Warned     State = "warning"     // the check passed, and the kubelet reports a warning
	Unreported State = "not reported"
	Unchecked  State = "not checked"
	Passing    State = "passing"
	NoProbe    State = "no probe"
)

var states = []State{Failing, Held, Restarting, Errored, CannotFail, Warned, Unreported, Unchecked, Passing, NoProbe}

// Workloads is the matrix of probes: a row for each workload.
type Workloads struct {
	Rows    []*Workload `json:"rows"`
	LeftOut uint32      `json:"leftOut,omitempty"`
}

// Workload is what runs as one or more pods, or as processes on machines.
type Workload struct {
	Mesh      string `json:"mesh"`
	Namespace string `json:"namespace,omitempty"` // of pods
	Name      string `json:"name"`
	Instances int    `json:"instances"`
	Startup   *Cell  `json:"startup"`
	Liveness  *Cell  `json:"liveness"`
	Readiness *Cell  `json:"readiness"`
}

// Cell is all probes of one type of a workload.
type Cell struct {
	// State is the worst, which Count of Total instances have.
	State State `json:"state"`
	Count int   `json:"count,omitempty"`
	Total int   `json:"total,omitempty"`
	// Since is the earliest of those with State, nil if unknown. AtLeast means that it may be earlier.
	Since   *time.Time `json:"since,omitempty"`
	AtLeast bool       `json:"sinceAtLeast,omitempty"`
	// Findings are the worst ones first, at most maxFindings. Unreported is the reason for pods without a finding, which
	// may be thousands.
	Findings   []Finding `json:"findings,omitempty"`
	LeftOut    int       `json:"leftOut,omitempty"`
	Unreported string    `json:"unreported,omitempty"`

	missed map[string]bool // instances that Unreported is about
}

// maxFindings limits the probes that a cell lists.
const maxFindings = 200

// Finding is the state of one probe of one instance.
type Finding struct {
	Instance  string `json:"instance"`
	Container string `json:"container,omitempty"`
	State     State  `json:"state"`
	// Probe is what the manifest says, Kubelet what the kubelet asks (in pods), Asks what the agent asks; empty if the
	// control plane does not have them.
	Probe   string `json:"probe,omitempty"`
	Kubelet string `json:"kubelet,omitempty"`
	Asks    string `json:"asks,omitempty"`
	// Since is when the state began, nil if that was before the replica that answers started. AtLeast means that the
	// state may be older: it is the first since the agent started.
	Since   *time.Time `json:"since,omitempty"`
	AtLeast bool       `json:"sinceAtLeast,omitempty"`
	// Changes are the latest ones, oldest first. Earlier is how many there were before since the agent started.
	Changes []Change `json:"changes,omitempty"`
	Earlier int      `json:"earlierChanges,omitempty"`
	Reason  string   `json:"reason,omitempty"`
	Do      string   `json:"do,omitempty"`
}

// Change is when a probe got a state.
type Change struct {
	At    time.Time `json:"at"`
	State State     `json:"state"`
}

// workloadsOf builds the matrix. unread is why the restarts could not be read, nil if they were.
func workloadsOf(f *status.Facts, unread error) *Workloads {
	hidden := ""
	if unread != nil {
		hidden = "restarts could not be read: " + grpcstatus.Convert(unread).Message()
	}
	proxies := map[mesh.ID]*adminv1.Proxy{}
	for _, p := range f.Proxies {
		proxies[mesh.MakeID(p.GetMesh(), p.GetName())] = p
	}
	restarts := map[string][]*adminv1.Restart{}
	for _, r := range f.Restarts.GetRestarts() {
		name := mesh.ObjectDataplane(r.GetNamespace(), r.GetPod())
		restarts[name] = append(restarts[name], r)
	}
	endpoints, rows := endpointsOfPods(f.Services), map[string]*Workload{}
	for _, d := range f.Dataplanes {
		namespace, name := "", cmp.Or(d.Spec.Workload(), d.Spec.Name)
		if of, pod, ok := mesh.ObjectOf(d.Spec.Name); ok && d.GetPod() {
			namespace, name = of, ownerOf(pod)
		}
		key := strings.Join([]string{d.Spec.Mesh, namespace, name}, "\x00")
		row := rows[key]
		if row == nil {
			row = &Workload{
				Mesh: d.Spec.Mesh, Namespace: namespace, Name: name, Startup: &Cell{}, Liveness: &Cell{}, Readiness: &Cell{},
			}
			rows[key] = row
		}
		row.Instances++
		if d.GetPod() {
			row.addPod(d, proxies[d.Spec.ID()], endpoints[d.Spec.ID()], restarts[d.Spec.Name], hidden)
			row.setTexts(d, f.ProbeSets[d.GetPodState().GetProbeSet()].GetProbes())
		} else {
			row.addInbounds(d, proxies[d.Spec.ID()])
		}
	}
	found := &Workloads{Rows: []*Workload{}, LeftOut: f.LeftOut["dataplanes"]}
	for _, key := range slices.Sorted(maps.Keys(rows)) {
		row := rows[key]
		row.Startup.finish()
		row.Liveness.finish()
		row.Readiness.finish()
		found.Rows = append(found.Rows, row)
	}
	return found
}

// generated is the end of a pod's name that its owner has added: a number, or letters of the alphabet of generated
// names, of a Deployment after the letters of its ReplicaSet.
// Source: k8s.io/apimachinery/pkg/util/rand.
var generated = regexp.MustCompile(`^(.+?)(-\d{1,5}|(-[bcdfghjklmnpqrstvwxz2456789]{6,10})?-[bcdfghjklmnpqrstvwxz2456789]{5})$`)

// ownerOf returns the name of a pod's owner, as far as the pod's name shows it: the control plane does not have it.
func ownerOf(pod string) string {
	if m := generated.FindStringSubmatch(pod); m != nil {
		return m[1]
	}
	return pod
}

// addInbounds adds the probes of a written Dataplane.
func (w *Workload) addInbounds(d *status.Dataplane, p *adminv1.Proxy) {
	for i := range d.Spec.Spec.Networking.Inbound {
		in := &d.Spec.Spec.Networking.Inbound[i]
		if in.State == mesh.InboundIgnored || i >= len(d.GetInbounds()) {
			continue
		}
		w.Readiness.add(ofInbound(d, in, d.GetInbounds()[i], p))
	}
}

// ofInbound returns the state of the application behind an inbound of a written Dataplane.
func ofInbound(d *status.Dataplane, in *mesh.Inbound, h *adminv1.InboundHealth, p *adminv1.Proxy) Finding {
	f := Finding{
		Instance: d.Spec.Name, Since: timeOf(h.GetSince()),
		Do: fmt.Sprintf("sondectl why dataplane/%s --mesh %s", d.Spec.Name, d.Spec.Mesh),
	}
	at := mesh.JoinHostPort(in.Address, in.Port)
	if !d.Spec.Probed(in) {
		f.State, f.Since, f.Reason = Unchecked, nil, "inbound "+at+" has no serviceProbe: it gets traffic whether its application answers or not"
		return f
	}
	timing := in.ServiceProbe.Timing()
	check, application := in.ServiceCheck()
	if check.Protocol() == "" { // of a later control plane
		f.State, f.Since, f.Reason = Unreported, nil, "its serviceProbe is of a kind that this sondectl does not support"
		return f
	}
	f.Probe = fmt.Sprintf("%s every %s, timeout %s, not ready after %s", check.Written(fmt.Sprintf(":%d", check.Port())), timing.Period, timing.Timeout, printer.Plural(int(timing.FailureThreshold), "failure"))
	f.Asks = check.Written(application.String())
	reason := h.GetReason()
	f.setVerdicts(p, at)
	switch {
	case p.GetAgentState().GetPhase() != adminv1.AgentState_CONNECTED:
		f.State, f.Since = Unreported, timeOf(p.GetAgentState().GetSince())
		f.Reason = cmp.Or(describe.Connection(p), reason, disconnected)
	case p.GetAgent().GetUnresponsive():
		f.State, f.Since, f.Reason = Unreported, nil, hangs
	case !slices.Contains(p.GetAgent().GetFeatures(), agentv1.FeatureServiceProbes):
		f.State, f.Since, f.Reason = Unreported, nil, tooOld
	case strings.HasPrefix(reason, mesh.ProbeFailedReason):
		f.State, f.Reason = Failing, strings.TrimPrefix(reason, mesh.ProbeFailedReason)
	case strings.HasPrefix(reason, mesh.ProbeWithoutVerdictReason):
		f.State, f.Reason = Errored, strings.TrimPrefix(reason, mesh.ProbeWithoutVerdictReason)
	case h.GetHealth() == adminv1.Endpoint_READY || h.GetHealth() == adminv1.Endpoint_DRAINING:
		f.State, f.Reason = Passing, reason
	default: // another reason, which counts before the probe
		f.State, f.Since, f.Reason = Unreported, nil, reason
	}
	return f
}

// miss counts an instance whose probe is not reported, and why.
func (c *Cell) miss(instance, why string) {
	c.Unreported = shorten(why)
	if c.missed == nil {
		c.missed = map[string]bool{}
	}
	c.missed[instance] = true
}

func (c *Cell) add(f Finding) {
	f.Reason = shorten(f.Reason)
	switch f.State {
	case Passing:
		f.Do = ""
	case Unreported: // what an agent reported before may be wrong by now
		f.AtLeast, f.Changes, f.Earlier = false, nil, 0
	}
	c.Findings = append(c.Findings, f)
}

// finish sorts the findings, and counts instances.
func (c *Cell) finish() {
	all := maps.Clone(c.missed)
	if all == nil {
		all = map[string]bool{}
	}
	for _, f := range c.Findings {
		all[f.Instance] = true
	}
	c.Total = len(all)
	slices.SortStableFunc(c.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(slices.Index(states, a.State), slices.Index(states, b.State)),
			cmp.Compare(a.Instance, b.Instance))
	})
	c.State = NoProbe
	if len(c.Findings) > 0 {
		c.State = c.Findings[0].State
	}
	if len(c.missed) > 0 && slices.Index(states, c.State) >= slices.Index(states, Unreported) {
		c.State = Unreported
	}
	c.setSince()
	c.LeftOut = max(0, len(c.Findings)-maxFindings)
	c.Findings = c.Findings[:len(c.Findings)-c.LeftOut]
}

// setSince counts the instances with the state, and sets its begin. It may be earlier if an instance has no begin.
func (c *Cell) setSince() {
	begun := map[string]bool{} // by instance: whether a begin is known
	if c.State == Unreported {
		for instance := range c.missed {
			begun[instance] = false
		}
	}
	for _, f := range c.Findings {
		if f.State != c.State {
			continue
		}
		begun[f.Instance] = begun[f.Instance] || f.Since != nil
		if f.Since != nil && (c.Since == nil || f.Since.Before(*c.Since)) {
			c.Since = f.Since
		}
		c.AtLeast = c.AtLeast || f.AtLeast
	}
	c.Count = len(begun)
	for _, known := range begun {
		c.AtLeast = c.AtLeast || !known
	}
	c.AtLeast = c.AtLeast && c.Since != nil
}

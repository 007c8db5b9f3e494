package why

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podcause"
)

// drains finds out whether the pod should get no new traffic.
func drains(f *Facts, _ []Finding) []Finding {
	var all []Finding
	if d := f.Pod.DeletionTimestamp; d != nil {
		all = append(all, terminating(f, d.Time))
	}
	why, servesOn := f.drain()
	if why == "" {
		return all
	}
	r := Finding{Cause: podcause.Draining, Keeps: FromNew, Text: podcause.Drains(why)}
	if servesOn {
		r.Keeps, r.Text = "", "it should get no new traffic, but keeps serving: "+why
	}
	r.Evidence = []Evidence{{Of: controlPlane, Says: why}}
	if f.Plane == nil {
		r.Evidence[0].Of = "annotation " + mesh.AnnotationDrain
	}
	if e := f.event(podcause.Draining, ""); e != nil {
		r.Since, r.Evidence = at(e.At), withEvents(r.Evidence, e)
	}
	return append(all, r)
}

// Nevertheless returns why a draining endpoint gets traffic, "" for any other endpoint.
func Nevertheless(s *adminv1.Service, e *adminv1.Endpoint) string {
	switch {
	case e.GetHealth() != adminv1.Endpoint_DRAINING || !e.GetGetsTraffic():
		return ""
	case s.GetHeadless():
		return "callers of service " + s.GetName() + " reach each endpoint at its own address"
	case s.GetLocal():
		return "no endpoint of service " + s.GetName() + " on its node is ready"
	}
	return "no endpoint of service " + s.GetName() + " is ready"
}

// serveNevertheless adds to findings about new traffic whether the pod still gets it.
func (f *Facts) serveNevertheless(all []Finding) {
	why, ofAll := f.servedNevertheless()
	for i := range all {
		r := &all[i]
		switch {
		case r.Keeps != FromNew:
		case f.Plane == nil:
			r.Text += "; it is unknown whether it still gets traffic because no other endpoint is ready"
		case len(why) > 0:
			r.Keeps = FromPreference
			r.Text += "; it still gets traffic"
			if !ofAll {
				r.Text += ", but not of all services"
			}
			r.Text += ": " + mesh.Few(why)
		}
	}
}

// servedNevertheless returns why a draining pod still gets traffic of services, and whether of all of them.
func (f *Facts) servedNevertheless() (why []string, ofAll bool) {
	if f.Plane == nil {
		return nil, false
	}
	ofAll = true
	for _, s := range f.Plane.Services {
		for _, e := range s.GetEndpoints() {
			if e.GetDataplane() != f.dataplane() || e.GetHealth() != adminv1.Endpoint_DRAINING {
				continue
			}
			text := Nevertheless(s, e)
			ofAll = ofAll && text != ""
			if text != "" && !slices.Contains(why, text) {
				why = append(why, text)
			}
		}
	}
	return why, ofAll
}

// terminating is the finding for a pod that is being deleted and must end by a deadline.
func terminating(f *Facts, by time.Time) Finding {
	r := Finding{Cause: "Terminating", Keeps: FromNew, Text: "it is being deleted", Since: at(f.deletedAt())}
	var run []string
	for _, c := range f.containers() {
		if c.status != nil && c.status.State.Running != nil {
			run = append(run, c.Name)
		}
	}
	switch {
	case len(run) == 0 && len(f.Pod.Finalizers) > 0:
		r.Text += ", and waits for its finalizers: " + mesh.Few(f.Pod.Finalizers)
	case len(run) > 0 && f.Now.After(by):
		r.Text += fmt.Sprintf(", and its grace period of %s has expired, but %s still run", by.Sub(f.deletedAt()), mesh.Few(run))
	case len(run) > 0:
		r.Text += fmt.Sprintf(": %s still run, until %s at most", mesh.Few(run), clock(by))
	}
	r.Evidence = withEvents([]Evidence{{Of: "pod/" + f.Pod.Name, Says: "deletionTimestamp " + by.UTC().Format(time.RFC3339), At: r.Since}}, f.event("Killing", ""))
	return r
}

// drain returns why a node or an administrator wants the pod to drain, and whether it still serves. The source is the
// control plane or, without a call, the pod's annotation.
func (f *Facts) drain() (why string, servesOn bool) {
	if f.Plane == nil {
		if reason, ok := f.Pod.Annotations[mesh.AnnotationDrain]; ok && f.injected() {
			return mesh.DrainText("pod", reason), false
		}
		return "", false
	}
	p := f.Plane.Proxy
	if p.GetDrain() != "" {
		var reasons []string
		for reason := range strings.SplitSeq(p.GetDrain(), "; ") {
			if reason != mesh.DrainTerminating { // the pod itself shows these reasons
				reasons = append(reasons, reason)
			}
		}
		return strings.Join(reasons, "; "), !p.GetDraining()
	}
	if p.GetDraining() && f.Pod.DeletionTimestamp == nil {
		return "its agent has reported that it is stopping", false
	}
	return "", false
}

// held finds guarded liveness probes that fail without a granted restart.
func held(f *Facts, _ []Finding) []Finding {
	c := f.condition(mesh.ConditionLivenessHeld)
	if c == nil || c.Status != corev1.ConditionTrue {
		return nil
	}
	containers, why, _ := strings.Cut(c.Message, ": ") // the control plane's leader writes this note
	r := Finding{
		Cause: "LivenessHeld", Keeps: FromNew, Text: podcause.Held(containers, why), Since: at(c.LastTransitionTime.Time),
		Do:       fmt.Sprintf("See sondectl restarts explain %s -n %s", f.Pod.Name, f.Pod.Namespace),
		Evidence: []Evidence{ofCondition(c)},
	}
	if e := f.eventThat(func(e *Event) bool { return e.Reason == podcause.RestartHeld }); e != nil {
		r.Evidence = withEvents(r.Evidence, e)
	}
	if f.Plane == nil {
		return []Finding{r}
	}
	for _, g := range f.Plane.Restart.GetContainers() {
		if d := g.GetRestart().GetDecision(); d.GetNeeds() != "" {
			r.Evidence = append(r.Evidence, Evidence{
				Of: controlPlane, Says: fmt.Sprintf("container %s restarts once: %s", g.GetName(), d.GetNeeds()),
			})
		}
	}
	return []Finding{r}
}

// frozen finds endpoints of the pod that remain although Kubernetes removes them.
func frozen(f *Facts, _ []Finding) []Finding {
	if f.Plane == nil {
		return nil
	}
	r := Finding{Cause: "Frozen"}
	for _, s := range f.Plane.Services {
		for _, e := range s.GetEndpoints() {
			if e.GetDataplane() != f.dataplane() || !strings.HasPrefix(e.GetReason(), mesh.FrozenReason) {
				continue
			}
			r.Text = strings.TrimSpace(strings.TrimPrefix(e.GetReason(), mesh.FrozenReason))
			r.Evidence = append(r.Evidence, Evidence{
				Of: controlPlane, Says: fmt.Sprintf("endpoint %s of service %s: %s", e.GetAddress(), s.GetName(), e.GetReason()),
			})
		}
	}
	if len(r.Evidence) == 0 {
		return nil
	}
	return []Finding{r}
}

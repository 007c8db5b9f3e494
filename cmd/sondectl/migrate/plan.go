package migrate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// Plan lists the changes by a mode.
type Plan struct {
	// To is the mode of workloads that request none.
	To         mesh.ProbesMode `json:"to"`
	Workloads  []WorkloadPlan  `json:"workloads"`
	Dataplanes []Dataplane     `json:"dataplanes"`
	Findings   int             `json:"findings"`
	Clashes    int             `json:"clashes"`
}

// WorkloadPlan lists the changes by a mode for one workload.
type WorkloadPlan struct {
	Namespace string `json:"namespace"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	// FromPod names the pod from which the probes are restored, if the pod's owner is not in the input.
	FromPod string `json:"fromPod,omitempty"`
	// Pods counts pods that have not ended, Modes counts them by mode, and Mode is their common mode.
	Pods  int          `json:"pods"`
	Mode  Mode         `json:"mode"`
	Modes map[Mode]int `json:"modes"`
	// To is the mode of new pods, "" for none. ToBy is the object that requests it, "" for the plan's mode.
	To   mesh.ProbesMode `json:"to"`
	ToBy string          `json:"toBy,omitempty"`
	// NotInjected is why new pods get no sidecar, "" if they get one or if this is unknown. The other fields describe the
	// pods as if injected.
	NotInjected string `json:"notInjected,omitempty"`
	// VirtualPort of new pods, 0 for none.
	VirtualPort int32       `json:"virtualPort"`
	Probes      []ProbePlan `json:"probes"`
	// Clashes are the reasons why the webhook rejects new pods.
	Clashes []string `json:"clashes"`
	// Warnings are the webhook's warnings about the whole pod. A warning about a probe is its Note.
	Warnings []string  `json:"warnings"`
	Findings []Finding `json:"findings"`
}

// ProbePlan describes the change of one probe or hook.
type ProbePlan struct {
	Container string         `json:"container"`
	Type      mesh.ProbeType `json:"type"`
	// Field of the pod, as in Finding.Field.
	Field string `json:"field"`
	// Written is the probe in the manifest.
	Written string `json:"written"`
	// Now has the kubelet's requests today, one entry for each variant among the pods; none without pods.
	Now []string `json:"now"`
	// Then is the kubelet's request to new pods, "" if the webhook rejects them.
	Then string `json:"then"`
	// Note is why the probe is not rewritten, "" if it is.
	Note string `json:"note,omitempty"`
}

// Plan returns the changes by o. o.ProbesMode is the mode of workloads that request none.
func (c *Cluster) Plan(o webhook.Options) *Plan {
	p := &Plan{To: o.ProbesMode, Workloads: []WorkloadPlan{}, Dataplanes: []Dataplane{}}
	for _, w := range c.workloads() {
		plan := c.planWorkload(w, o)
		p.Findings += len(plan.Findings)
		p.Clashes += len(plan.Clashes)
		p.Workloads = append(p.Workloads, plan)
	}
	for _, d := range c.dataplanes {
		d.judge(o.ProbesMode)
		if !d.Effective {
			p.Findings++
		}
		p.Dataplanes = append(p.Dataplanes, d)
	}
	return p
}

// judge describes the effect of a Dataplane's deprecated fields in a mode.
func (d *Dataplane) judge(to mesh.ProbesMode) {
	fields := strings.Join(d.Fields, " and ")
	if d.Group == kumaGroup {
		d.Text = fields + ": Sonde does not read this object, and Kuma 3.0 drops the fields silently: write it in Sonde's API group"
		return
	}
	mode := to
	if d.modeField != "" {
		var err error
		if mode, err = mesh.ParseProbesMode(d.mode); err != nil {
			d.Text = fmt.Sprintf("%s: Sonde rejects this object: %v", fields, &mesh.FieldError{Field: d.modeField, Value: d.mode, Err: err})
			return
		}
	}
	d.Effective = mode == mesh.ProbesPerPort
	if d.Effective {
		d.Text = fields + ": deprecated, and only supported in per-port mode"
	} else {
		d.Text = fmt.Sprintf("%s: unified mode does not support them: keep per-port with the label %s until no probe uses these ports",
			fields, mesh.AnnotationVirtualProbesMode)
	}
}

func (c *Cluster) planWorkload(w *workload, o webhook.Options) WorkloadPlan {
	p := WorkloadPlan{
		Namespace: w.namespace, Kind: w.kind, Name: w.name, FromPod: w.fromPod, Pods: len(w.pods), Modes: map[Mode]int{},
		Probes: []ProbePlan{}, Warnings: []string{}, Findings: []Finding{},
	}
	a := c.admit(w, o)
	for _, r := range webhook.Requests(a.template) {
		p.Probes = append(p.Probes, ProbePlan{
			Container: r.Container, Type: r.Type, Field: r.Field, Written: r.Written, Now: []string{},
		})
	}
	p.readToday(w)
	p.Clashes = linesOf(a.unreadable)
	switch {
	case a.misselected != nil:
	case a.unselected() && a.selection.Why != "":
		p.leave(a.selection.Why)
		return p
	case a.unselected():
		p.NotInjected = "neither its namespace nor its pods have " + strings.Join(o.InjectionKeys(), " or ")
		if len(p.Modes) == 0 || p.Mode == None { // the workload has no sidecar, and no label asks for one of Sonde
			p.leave(p.NotInjected)
			return p
		}
	default:
		p.find(c.twoMeshes(w, p.Modes)...)
	}
	p.find(annotationFindings(a.template, p.Modes)...)
	p.find(c.namespaceFindings(w)...)
	p.readAdmission(a)
	return p
}

// find adds new findings.
func (p *WorkloadPlan) find(findings ...Finding) {
	for _, f := range findings {
		if !slices.Contains(p.Findings, f) {
			p.Findings = append(p.Findings, f)
		}
	}
}

// findNow adds findings about a running pod.
func (p *WorkloadPlan) findNow(findings []Finding) {
	for _, f := range findings {
		f.When = Now
		p.find(f)
	}
}

// findThen adds findings about new pods, and marks those that already exist.
func (p *WorkloadPlan) findThen(findings []Finding) {
	for _, f := range findings {
		f.When = Now
		if i := slices.Index(p.Findings, f); i >= 0 {
			p.Findings[i].When = NowAndThen
			p.Findings[i].Text += "; new pods will have this problem, too"
			continue
		}
		f.When, f.Text = Then, "new pods will have this problem: "+f.Text
		p.find(f)
	}
}

// leave marks the workload as unchanged, with the reason.
func (p *WorkloadPlan) leave(why string) {
	p.NotInjected = why
	for i := range p.Probes {
		p.Probes[i].Then = p.Probes[i].Written
	}
}

// readToday reads modes, requests and findings from the pods. Pods of one workload with the same mode and meshes are
// alike, so it reads only the first one.
func (p *WorkloadPlan) readToday(w *workload) {
	seen := map[string]bool{}
	for _, pod := range w.pods {
		s := sidecarOf(pod)
		p.Modes[s.mode]++
		alike := fmt.Sprint(s.mode, s.meshes)
		if seen[alike] {
			continue
		}
		seen[alike] = true
		p.findNow(findingsOf(pod, s))
		asked := pod.DeepCopy()
		for _, r := range withoutMesh(asked, s.mode) {
			i := slices.IndexFunc(p.Probes, func(probe ProbePlan) bool { return probe.Field == r.Field })
			if i >= 0 && !slices.Contains(p.Probes[i].Now, r.Written) {
				p.Probes[i].Now = append(p.Probes[i].Now, r.Written)
			}
		}
	}
	switch len(p.Modes) {
	case 0:
		p.Mode = Unknown
	case 1:
		p.Mode = sortedKeys(p.Modes)[0]
	default:
		p.Mode = Mixed
	}
}

// readAdmission reads the webhook's result for new pods.
func (p *WorkloadPlan) readAdmission(a *admission) {
	p.To, p.ToBy, p.VirtualPort, p.Clashes = a.to, a.toBy, a.port, a.clashes()
	ofProbes := map[string]bool{}
	for i := range p.Probes {
		probe := &p.Probes[i]
		d, ok := decisionFor(probe.Container, probe.Type, a.decisions)
		if !ok {
			continue
		}
		if probe.Note = d.Why; d.Probe == nil {
			probe.Then = d.Written
		} else {
			probe.Then = d.Asks(a.port)
		}
		ofProbes[probe.Field+": "+d.Why] = true
	}
	for _, warning := range a.warnings {
		unread := slices.ContainsFunc(webhook.UnknownAnnotations(&a.template.ObjectMeta), func(key string) bool {
			return strings.Contains(warning, `"`+key+`"`)
		})
		if !ofProbes[warning] && !unread {
			p.Warnings = append(p.Warnings, warning)
		}
	}
	if a.pod != nil {
		p.findThen(findingsOf(a.pod, sidecarOf(a.pod)))
	}
}

// sortedKeys returns the keys of a map, sorted.
func sortedKeys[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/test/fidelity/cases"
)

// The number of a case determines its kind of probe or hook.
const (
	liveness = iota
	readiness
	startup

	postStart = 0
	preStop   = 1
)

// probeCase is a case of the fidelity test, with its kind of probe or hook.
type probeCase struct {
	name string
	kind int
}

// probeCases are cases of the fidelity test that cover each kind and each verdict. Cases whose application responds
// only once are omitted, because this test probes once a second.
var probeCases = []probeCase{
	{"status 204", readiness},
	{"status 302", liveness},
	{"status 404", startup},
	{"status 503", readiness},
	{"status line 2x0", liveness},
	{"interim 103 and 200", startup},
	{"interim 103 alone", readiness},
	{"interim 101 with Upgrade", liveness},
	{`path "a:b"`, readiness},
	{`path "/a%2Fb"`, liveness},
	{`path "?x=1"`, startup},
	{"header Host with a space", readiness},
	{"header newline", startup},
	{"HTTP/2 header Upgrade", readiness},
	{"redirect to itself for ever", readiness},
	{"redirect elsewhere, body always cut", startup},
	{"redirect http to https to http", liveness},
	{"body cut", liveness},
	{"body 10 KiB + 1", readiness},
	{"body chunk of a wrong size", readiness},
	{"body Transfer-Encoding gzip", startup},
	{"server says SSH", liveness},
	{"server resets within the headers", readiness},
	{"server says 101 headers", startup},
	{"answer never", liveness},
	{"body never", readiness},
	{"timeout of 68 years", startup},
	{"TLS expired", readiness},
	{"TLS client certificate required", startup},
	{"https to a port of HTTP", readiness},
	{"http to a port of TLS", liveness},
	{"HTTP/2 trailers", startup},
	{"HTTP/2 RST_STREAM", liveness},
	{"TCP open, never accepted", readiness},
	{"TCP refused", liveness},
	{"TCP backlog full", startup},
	{"gRPC status 1, SERVING", liveness},
	{"gRPC status 2, NOT_SERVING", readiness},
	{"gRPC code 12", startup},
	{"gRPC code 14", liveness},
	{"port TCP by the name of a closed one", liveness},
	{"port HTTP by an unknown name", liveness},
	{"host of another address, TCP", readiness},
	{"several containers that name their ports alike", readiness},
	{"hook redirected for ever", postStart},
	{"hook redirected to a closed port", preStop},
	{"hook 500 No", preStop},
}

// The kubelet drops events of a pod after 25, so each pod has few cases; and few pods start at once.
const (
	casesPerPod = 2
	podsAtOnce  = 6
)

// fate is what happened to a container.
type fate struct {
	// Started and Ready are its history; for a restarted container, whether it was Started first, and whether it was
	// ever Ready. Whether a kubelet reports it as running before Started depends on its load, so that is ignored.
	Started, Ready []bool
	Restarted      bool
	// Events are the kubelet's events about probes and hooks, up to the first colon.
	Events []string
}

// TestProbes has the real kubelet probe cases of the fidelity test, without a mesh, and in a mesh in both modes of
// probes.
func TestProbes(t *testing.T) {
	t.Parallel()
	sameProbes(t, probesOn(t, "node2", probeCases), plain, inMesh, inPerPort)
}

// asking has the cases for a node, and the minor version of its kubelet.
type asking struct {
	cases []probeCase
	node  string
	minor int
}

// probesOn has the kubelet of a node probe cases.
func probesOn(t *testing.T, node string, list []probeCase) asking {
	t.Helper()
	return asking{list, node, kubeletMinor(t, node)}
}

// sameProbes probes on these sides, of which plain is one, and compares what happened to the containers.
func sameProbes(t *testing.T, ask asking, sides ...side) {
	t.Helper()
	for attempt := 1; len(ask.cases) > 0; attempt++ {
		results := onSides(t, func(n *namespace) map[string]fate { return n.probe(ask) }, sides...)
		var differing []string
		for s, fates := range results {
			if d := cmp.Diff(results[plain], fates); d != "" {
				t.Logf("attempt %d: what happened without a mesh (-) and in %s (+):\n%s", attempt, s, d)
			}
			for name, f := range fates {
				if !cmp.Equal(results[plain][name], f) {
					differing = append(differing, name)
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(results[plain])) {
			t.Logf("%s: %+v", name, results[plain][name])
		}
		if attempt == attempts && len(differing) > 0 {
			t.Errorf("%d times the same cases had another fate in the mesh: %q", attempts, differing)
			break
		}
		ask.cases = casesOf(ask.cases, differing)
	}
}

// casesOf returns the cases with containers of these titles.
func casesOf(all []probeCase, titles []string) []probeCase {
	var list []probeCase
	for _, c := range all {
		if slices.ContainsFunc(titles, func(title string) bool { return title == c.name || strings.HasPrefix(title, c.name+" (") }) {
			list = append(list, c)
		}
	}
	return list
}

// probe has a kubelet probe cases, and returns what happened to each container.
func (n *namespace) probe(ask asking) map[string]fate {
	n.t.Helper()
	fates := map[string]fate{}
	pods := slices.Collect(slices.Chunk(ask.cases, casesPerPod))
	for first := range slices.Chunk(pods, podsAtOnce) {
		var running []*probedPod
		for _, part := range first {
			p := &probedPod{n: n, name: fmt.Sprintf("p%d", len(fates))}
			for _, c := range part {
				p.add(c.name, c.kind, ask.minor)
			}
			p.start(ask.node, fates)
			running = append(running, p)
		}
		for _, p := range running {
			p.await()
		}
		pass(n.t, 3*time.Second) // for some more probes
		for _, p := range running {
			p.end(fates)
		}
	}
	return fates
}

// probedPod is a pod with the containers of some cases.
type probedPod struct {
	n          *namespace
	name       string
	containers []probedContainer
	// settled is when all probes had reached their final verdicts. Before, an application may not have run
	// yet.
	settled time.Time
}

type probedContainer struct {
	corev1.Container
	// title is the name of the case, with the container's name if it has several.
	title string
	// want is the verdict of each kind of its probes and hooks.
	want map[string]cases.Verdict
	// asked means that the kubelet probes the application directly, even in the mesh.
	asked       bool
	stopHistory func() history
}

// add gives a pod the containers of a case. The first container has the application.
func (p *probedPod) add(name string, number, minor int) {
	p.n.t.Helper()
	c, err := cases.Find(name)
	if err != nil {
		p.n.t.Fatal(err)
	}
	c.Number = number
	port := 20000 + 10*len(p.containers)
	var asked int
	for i, container := range c.Pod(cases.PodAt("", port, 9000)).Spec.Containers {
		own := probedContainer{Container: container, title: c.Name, want: map[string]cases.Verdict{}, asked: c.Unchanged}
		own.Name, own.Image = fmt.Sprintf("c%d", len(p.containers)), appImage
		own.Env = []corev1.EnvVar{{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}}}
		if i == 0 {
			own.Args = []string{"--case=" + c.Name, fmt.Sprintf("--case-port=%d", port)}
		} else {
			own.title += fmt.Sprintf(" (%d)", i)
		}
		for _, kind := range cases.Kinds {
			if probe := cases.ProbeOf(&own.Container, kind); probe != nil {
				probe.InitialDelaySeconds, probe.PeriodSeconds, probe.FailureThreshold = 5, 1, 3
				probe.TimeoutSeconds = max(probe.TimeoutSeconds, 3) // on a busy machine, headers may take a second
			} else if cases.HookOf(&own.Container, kind) == nil {
				continue
			}
			asked++
			own.want[kind] = c.Wants(asked, minor)[asked-1]
		}
		p.containers = append(p.containers, own)
	}
}

// start creates the pod on a node, and starts to watch it. Each container gets an entry in fates.
func (p *probedPod) start(node string, fates map[string]fate) {
	p.n.t.Helper()
	pod := newPod(p.name, node)
	pod.Spec.Containers = nil
	for i := range p.containers {
		c := &p.containers[i]
		fates[c.title] = fate{}
		c.stopHistory = p.n.watchHistory(p.name, c.Name)
		pod.Spec.Containers = append(pod.Spec.Containers, c.Container)
	}
	p.n.create(pod)
}

// await waits until every container behaves as the verdicts demand.
func (p *probedPod) await() {
	p.n.t.Helper()
	p.n.waitPod(p.name, "all probes have done what they do", func(pod *corev1.Pod) error {
		events, err := p.n.events(p.n.t.Context())
		if err != nil {
			return err
		}
		var missing []error
		for i := range p.containers {
			missing = append(missing, p.containers[i].lacks(status(pod, p.containers[i].Name)))
			for kind := range p.containers[i].want {
				if kind != cases.Kinds[len(cases.Kinds)-1] { // preStop comes later
					missing = append(missing, p.lacksEvents(&p.containers[i], kind, events))
				}
			}
		}
		return errors.Join(missing...)
	})
	p.settled = time.Now()
}

// lacks returns how a container's status differs from the result of its probes' verdicts. If probes fail, the final
// state shows it; if they pass or are discarded, the history does.
func (c *probedContainer) lacks(s corev1.ContainerStatus) error {
	passes := func(v cases.Verdict) bool { return v == cases.Success || v == cases.Warning }
	for kind, verdict := range c.want {
		var holds bool
		switch kind {
		case "liveness", "postStart", "preStop":
			holds = s.State.Running != nil
		case "readiness":
			holds = s.Ready == passes(verdict)
		default:
			holds = s.Started != nil && *s.Started == passes(verdict)
		}
		if verdict == cases.Failure && kind != "readiness" && kind != "preStop" {
			holds = s.RestartCount > 0
		}
		if !holds {
			return fmt.Errorf("%s: %s is %s, and the container ready %t, started %v, restarts %d, %s", c.title, kind, verdict,
				s.Ready, s.Started != nil && *s.Started, s.RestartCount, stateOf(s.State))
		}
	}
	return nil
}

// kubeletEvent returns the reason of the kubelet's event about a verdict, and the start of its message.
func kubeletEvent(kind string, verdict cases.Verdict) (reason, begins string) {
	title := strings.ToUpper(kind[:1]) + kind[1:]
	switch {
	case verdict == cases.Success:
		return "", ""
	case kind == "postStart" || kind == "preStop":
		return "Failed" + title + "Hook", title + "Hook failed"
	case verdict == cases.Warning:
		return "ProbeWarning", title + " probe warning"
	case verdict == cases.Errored:
		return "Unhealthy", title + " probe errored"
	}
	return "Unhealthy", title + " probe failed"
}

// lacksEvents returns which events of a probe or hook are missing: the kubelet's, and in the mesh also ours with the
// reason.
func (p *probedPod) lacksEvents(c *probedContainer, kind string, events []corev1.Event) error {
	reason, begins := kubeletEvent(kind, c.want[kind])
	if reason == "" {
		return nil
	}
	wanted := map[string]string{reason: begins}
	if probe := cases.ProbeOf(&c.Container, kind); probe != nil && !c.asked && p.n.agentAnswers(probe) {
		wanted["ProbeFailed"] = begins
	}
	for _, e := range events {
		if about(&e, p.name, c.Name) && strings.HasPrefix(e.Message, wanted[e.Reason]) {
			delete(wanted, e.Reason)
		}
	}
	if written := writtenByKubelet(p.name, events); written >= kubeletEvents {
		delete(wanted, reason)
	}
	if len(wanted) > 0 {
		return fmt.Errorf("%s: no event %v", c.title, wanted)
	}
	return nil
}

// kubeletEvents is how many events a kubelet writes about a pod before it drops events (the burst of client-go's
// EventSourceObjectSpamFilter). On a busy machine, a starting sidecar uses them up, at one event per second. A
// dropped event then causes a different fate, and another attempt.
const kubeletEvents = 25

func writtenByKubelet(pod string, events []corev1.Event) (written int32) {
	for i := range events {
		if e := &events[i]; e.Source.Component == "kubelet" && e.InvolvedObject.Name == pod {
			written += e.Count
		}
	}
	return written
}

// agentAnswers returns whether the agent responds to a probe, and so can tell why it fails.
func (n *namespace) agentAnswers(p *corev1.Probe) bool {
	return n.injected && (!n.perPort || p.HTTPGet != nil)
}

// about returns whether an event is about a container.
func about(e *corev1.Event, pod, container string) bool {
	return e.InvolvedObject.Name == pod && e.InvolvedObject.FieldPath == "spec.containers{"+container+"}"
}

// end records what happened to the containers, and deletes the pod; then readiness probes fail and preStop hooks are
// called.
func (p *probedPod) end(fates map[string]fate) {
	p.n.t.Helper()
	for i := range p.containers {
		c := &p.containers[i]
		h := c.stopHistory()
		f := fate{Started: h.Started, Ready: h.Ready, Restarted: len(h.Restarts) > 1, Events: p.eventsOf(c)}
		if f.Restarted { // restarts repeat, and the test ends at an arbitrary one
			f.Started, f.Ready = f.Started[:1], []bool{slices.Contains(f.Ready, true)}
		} else if len(f.Started) > 1 && !f.Started[0] {
			f.Started = f.Started[1:]
		}
		fates[c.title] = f
	}
	p.n.deletePod(p.name)
	for i := range p.containers {
		if c := &p.containers[i]; c.want["preStop"] != "" {
			p.n.wait("the event of a hook", func() error {
				events, err := p.n.events(p.n.t.Context())
				if err != nil {
					return err
				}
				return p.lacksEvents(c, "preStop", events)
			})
		}
	}
}

// eventsOf returns the kubelet's events of a container's probes and hooks: the expected events, and all other events
// since settled.
func (p *probedPod) eventsOf(c *probedContainer) []string {
	p.n.t.Helper()
	events, err := p.n.events(p.n.t.Context())
	if err != nil {
		p.n.t.Fatal(err)
	}
	var texts []string
	for _, e := range events {
		if !about(&e, p.name, c.Name) || !slices.Contains([]string{"Unhealthy", "ProbeWarning", "FailedPostStartHook"}, e.Reason) {
			continue
		}
		text, _, _ := strings.Cut(e.Message, ":")
		expected := false
		for kind, verdict := range c.want {
			reason, begins := kubeletEvent(kind, verdict)
			expected = expected || e.Reason == reason && strings.HasPrefix(text, begins)
		}
		if expected || e.LastTimestamp.After(p.settled) {
			texts = append(texts, e.Reason+" "+text)
		}
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}

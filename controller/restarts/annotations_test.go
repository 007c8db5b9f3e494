package restarts

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// newTestRestarts returns a Restarts that has read nothing and does not run.
func newTestRestarts(t *testing.T, o Options) *Restarts {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	o.Watching, o.Grants, o.Logger = client, client.CoreV1().RESTClient(), slog.New(slog.DiscardHandler)
	return New(o)
}

// annotated returns guardedPod with two annotations, leaving out empty ones.
func annotated(liveness, guarded string) *corev1.Pod {
	p := guardedPod()
	delete(p.Annotations, mesh.AnnotationGuardedLiveness)
	for key, value := range map[string]string{mesh.AnnotationLiveness: liveness, mesh.AnnotationGuardedLiveness: guarded} {
		if value != "" {
			p.Annotations[key] = value
		}
	}
	return p
}

const (
	modeHold      = agentv1.Restarts_HOLD
	modeNative    = agentv1.Restarts_NATIVE
	modeSuspended = agentv1.Restarts_SUSPENDED
)

// The annotation of a running pod changes several times.
func TestAnnotationsOfARunningPod(t *testing.T) {
	const in, on = `metadata.annotations["sonde.dev/liveness"]: "suspend": must be suspended or native; `, "enabled"
	type step struct {
		liveness, guarded string
		mode              agentv1.Restarts_Mode
		wrong             string // how each error begins
	}
	for name, steps := range map[string][]step{
		"suspended, and not":           {{"", on, modeHold, ""}, {"suspended", on, modeSuspended, ""}, {"", on, modeHold, ""}},
		"native, suspended, and not":   {{"native", on, modeNative, ""}, {"suspended", on, modeSuspended, ""}, {"", on, modeHold, ""}},
		"bad, and new":                 {{"suspend", on, modeHold, in + "the liveness probes stay guarded"}, {"suspended", on, modeSuspended, ""}},
		"bad, and nothing before":      {{"", on, modeHold, ""}, {"suspend", on, modeHold, in + "the liveness probes stay guarded"}},
		"the last good value holds":    {{"suspended", on, modeSuspended, ""}, {"suspend", on, modeSuspended, in + "the previous value stays in effect: suspended"}, {"suspend", on, modeSuspended, in}, {"", on, modeHold, ""}},
		"also native":                  {{"native", on, modeNative, ""}, {"suspend", on, modeNative, in + "the previous value stays in effect: native"}, {"native", on, modeNative, ""}},
		"disabled":                     {{"", "disabled", modeHold, `metadata.annotations["sonde.dev/guarded-liveness"]: "disabled": must be enabled while this pod runs`}, {"", on, modeHold, ""}},
		"no longer said to be guarded": {{"", "", modeHold, `metadata.annotations["sonde.dev/guarded-liveness"]: must be enabled while this pod runs`}},
		"disabled, and native":         {{"native", "disabled", modeNative, `metadata.annotations["sonde.dev/guarded-liveness"]: "disabled"`}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestRestarts(t, Options{}).cluster
			for i, s := range steps {
				if err := c.pods.Add(annotated(s.liveness, s.guarded)); err != nil {
					t.Fatal(err)
				}
				p := c.pods.Get(watch.Key{Namespace: "shop", Name: "web-5d4f-1"})
				if !p.guarded() || p.mode(restartbudget.Settings{}) != s.mode {
					t.Errorf("step %d: %+v, want mode %d", i, p, s.mode)
				}
				var wrong wrongAnnotations
				fresh := wrong.fresh(c)
				if s.wrong == "" && len(fresh) > 0 || s.wrong != "" && (len(fresh) != 1 || !strings.HasPrefix(fresh[0].err().Error(), s.wrong)) {
					t.Errorf("step %d: invalid annotations %v, want %s", i, fresh, s.wrong)
				}
			}
		})
	}
}

// The annotation of an earlier pod with the same name has no effect.
func TestAnnotationOfAnEarlierPod(t *testing.T) {
	c := newTestRestarts(t, Options{}).cluster
	next := annotated("suspend", "enabled")
	next.UID = "b"
	for _, p := range []*corev1.Pod{annotated("suspended", "enabled"), next} {
		if err := c.pods.Add(p); err != nil {
			t.Fatal(err)
		}
	}
	if p := c.pods.Get(watch.Key{Namespace: "shop", Name: "web-5d4f-1"}); p.Suspended {
		t.Error("the pod is suspended by the annotation of its predecessor")
	}
}

// Each invalid annotation is reported once.
func TestWrongAnnotationsAreToldOnce(t *testing.T) {
	c := newTestRestarts(t, Options{}).cluster
	var wrong wrongAnnotations
	var told []string
	for _, liveness := range []string{"a", "a", "b", "suspended", "b", strings.Repeat("c", 1000)} {
		if err := c.pods.Add(annotated(liveness, "enabled")); err != nil {
			t.Fatal(err)
		}
		told = append(told, liveness+":")
		for _, w := range wrong.fresh(c) {
			if e := w.event(); e.Name != "web-5d4f-1" || e.Namespace != "shop" || e.UID != "a" || e.Reason != "BadAnnotation" || !strings.Contains(e.Note, w.value) {
				t.Errorf("the event is %+v", e)
			}
			told = append(told, w.value)
		}
	}
	long := strings.Repeat("c", 1000)
	if diff := cmp.Diff([]string{"a:", "a", "a:", "b:", "b", "suspended:", "b:", "b", long + ":", long[:maxShown] + "..."}, told); diff != "" {
		t.Errorf("reported (-want +got):\n%s", diff)
	}
}

// The settings take precedence over the annotation. Failures of a native pod are not held, and the breaker ignores
// them.
func TestModeOfAPod(t *testing.T) {
	liveness := map[watch.Key]agentv1.ReportedLiveness{{Namespace: "shop", Name: "web-5d4f-1"}: {Report: asking("app"), At: time.Now()}}
	for name, tc := range map[string]struct {
		settings restartbudget.Mode
		liveness string
		mode     agentv1.Restarts_Mode
		verdict  restartbudget.Verdict
		reason   restartbudget.Reason
		guarded  int
	}{
		"enforced":           {restartbudget.Enforce, "", modeHold, restartbudget.Granted, restartbudget.ReasonGranted, 1},
		"suspended":          {restartbudget.Enforce, "suspended", modeSuspended, restartbudget.Held, restartbudget.ReasonSuspended, 1},
		"native":             {restartbudget.Enforce, "native", modeNative, restartbudget.Native, restartbudget.ReasonNative, 0},
		"off":                {restartbudget.Off, "", modeNative, restartbudget.Native, restartbudget.ReasonOff, 1},
		"off, suspended":     {restartbudget.Off, "suspended", modeNative, restartbudget.Native, restartbudget.ReasonOff, 1},
		"dry run":            {restartbudget.DryRun, "", modeNative, restartbudget.Granted, restartbudget.ReasonGranted, 1},
		"dry run, suspended": {restartbudget.DryRun, "suspended", modeNative, restartbudget.Held, restartbudget.ReasonSuspended, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestRestarts(t, Options{}).cluster
			if err := c.pods.Add(annotated(tc.liveness, "enabled")); err != nil {
				t.Fatal(err)
			}
			in, _ := c.input(liveness)
			in.Settings = restartbudget.Settings{Mode: tc.settings}
			d := restartbudget.New().Decide(time.Now(), in).Decisions[0]
			if d.Verdict != tc.verdict || d.Reason != tc.reason || d.DryRun != (tc.settings == restartbudget.DryRun) || in.Guarded != tc.guarded {
				t.Errorf("decision %+v with %d guarded containers, want %s for %s of %d", d, in.Guarded, tc.verdict, tc.reason, tc.guarded)
			}
			if got := c.policies(in.Settings)[watch.Key{Namespace: "shop", Name: "web-5d4f-1"}].GetMode(); got != tc.mode {
				t.Errorf("the agent gets mode %d, want %d", got, tc.mode)
			}
		})
	}
}

// New settings take effect at once, at agents and in the leader's decisions.
func TestConfigure(t *testing.T) {
	told := 0
	r := newTestRestarts(t, Options{Agents: func() Agents { return podAgents{tell: func(watch.Key) { told++ }} }, Proxy: proxyOf, Settings: restartbudget.Settings{Mode: restartbudget.DryRun}})
	if err := r.cluster.pods.Add(annotated("", "enabled")); err != nil {
		t.Fatal(err)
	}
	plan := func() { r.setPolicies(r.cluster.policies(*r.settings.Load())) }
	plan()
	if told != 1 || r.policies[watch.Key{Namespace: "shop", Name: "web-5d4f-1"}].GetMode() != modeNative {
		t.Fatalf("agents woken %d times, policies %+v", told, r.policies)
	}
	<-r.wake
	<-r.plan
	r.Configure(restartbudget.Settings{Mode: restartbudget.Enforce}, "")
	<-r.wake
	<-r.plan
	plan()
	if told != 2 || len(r.policies) != 0 {
		t.Errorf("agents woken %d times, policies %+v", told, r.policies)
	}
}

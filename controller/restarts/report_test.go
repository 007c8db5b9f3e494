package restarts

import (
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// restart restarts the container app of a pod in the namespace shop, which then fails again.
func (a *api) restart(pod string) {
	p := a.pod(pod)
	p.Status.ContainerStatuses[0].RestartCount++
	a.setPod(p)
	a.say(pod, &agentv1.Liveness{}) // not checked yet
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		a.deploy("web", 4)
		defer a.lead(1)()
		a.fail("web-0")
		wait(time.Second)
		a.fail("web-1")
		wait(time.Minute)
		for range 2 { // neither restart helps
			a.restart("web-0")
			wait(time.Second)
			a.fail("web-0")
			wait(time.Second)
		}
		wait(time.Minute)
		for reason, want := range map[string][]string{
			eventGranted: {
				"Pod web-0: container app may restart: its liveness probe fails, and it has restarted 3 times",
				"Pod web-1: container app may restart: its liveness probe fails, and it has restarted 3 times",
			},
			eventUnhelpful: nil,
		} {
			if diff := cmp.Diff(want, a.eventsOf(reason)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", reason, diff)
			}
		}
		want := []string{
			"Pod web-1: the liveness probe of container app fails, and it may not restart: 1 of 1 restarts are in progress (the default, 25 %)",
			"Pod web-0: the liveness probe of container app fails, and it may not restart: 1 of 1 restarts are in progress (the default, 25 %)",
			"Pod web-0: the liveness probe of container app fails, and it may not restart: 1 of 1 restarts are in progress (the default, 25 %)",
		} // web-0 after each restart
		if diff := cmp.Diff(want, a.eventsOf(eventHeld)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", eventHeld, diff)
		}
		a.restart("web-1")
		wait(time.Second)
		a.fail("web-1")
		wait(time.Minute)
		note := "Deployment web: 2 restarts in a row failed again before their liveness probe had passed: no container restarts until the pod template changes, or sondectl restarts release Deployment/shop/web is run"
		if diff := cmp.Diff([]string{note}, a.eventsOf(eventUnhelpful)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", eventUnhelpful, diff)
		}
		for _, e := range a.events {
			if e.Reason == eventUnhelpful && (e.UID != "u-1" || e.APIVersion != "apps/v1") || e.Normal != (e.Reason == eventGranted) || e.UID == "" {
				t.Errorf("event %+v", e)
			}
		}
	})
}

func TestBreakerIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		registry := prometheus.NewRegistry()
		a.r.metrics = newMetrics(a.r, registry)
		pods := []string{"a-0", "b-0", "c-0"}
		for _, name := range []string{"a", "b", "c"} {
			a.deploy(name, 1)
		}
		defer a.lead(1)()
		wait(time.Second)
		a.wantMetric(registry, "sonde_restart_breaker_open", "", 0)
		a.fail(pods...)
		wait(time.Second)
		a.wantMetric(registry, "sonde_restart_breaker_open", "", 1)
		a.wantMetric(registry, "sonde_restart_decisions_total", "breaker_open", 3)
		wait(time.Minute)
		a.wantMetric(registry, "sonde_restart_decisions_total", "breaker_open", 3)
		a.pass(pods...)
		wait(2 * time.Minute)
		a.wantMetric(registry, "sonde_restart_breaker_open", "", 0)
		if open, closed := a.eventsOf(eventBreakerOpen), a.eventsOf(eventBreakerClosed); len(open) != 1 || len(closed) != 1 ||
			open[0] != "Lease sonde-cp: no restart is granted: within a minute the liveness probes of 3 of 3 guarded containers failed, of 3 workloads" {
			t.Errorf("events %q and %q", open, closed)
		}
	})
}

// wantMetric compares the metric of a name, and of a reason if it has that label.
func (a *api) wantMetric(registry *prometheus.Registry, name, reason string, want float64) {
	a.t.Helper()
	families, err := registry.Gather()
	if err != nil {
		a.t.Fatal(err)
	}
	found := 0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			has := reason == ""
			for _, l := range m.GetLabel() {
				has = has || l.GetName() == "reason" && l.GetValue() == reason
			}
			if f.GetName() != name || !has {
				continue
			}
			found++
			if got := m.GetGauge().GetValue() + m.GetCounter().GetValue(); got != want {
				a.t.Errorf("%s{%s} is %v, want %v", name, reason, got, want)
			}
		}
	}
	if found != 1 {
		a.t.Errorf("%d series %s{%s}", found, name, reason)
	}
}

// The breaker of a single namespace is reported in that namespace.
func TestBreakerOfANamespaceIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		registry := prometheus.NewRegistry()
		a.r.metrics = newMetrics(a.r, registry)
		for _, name := range []string{"a", "b", "c"} {
			a.deploy(name, 1)
		}
		neighbour := guardedPod()
		neighbour.Namespace, neighbour.Name, neighbour.UID = "other", "neighbour", "neighbour"
		a.setPod(neighbour)
		defer a.lead(1)()
		a.fail("a-0", "b-0", "c-0")
		wait(time.Second)
		a.wantMetric(registry, "sonde_restart_breaker_open", "", 0)
		a.wantMetric(registry, "sonde_restart_breaker_namespace_open", "", 1)
		a.pass("a-0", "b-0", "c-0")
		wait(2 * time.Minute)
		a.wantMetric(registry, "sonde_restart_breaker_namespace_open", "", 0)
		want := []string{"Namespace shop: no restart is granted in the namespace: within a minute 3 of 4 guarded containers failed, and 3 of them, of 3 workloads, in namespace shop: it is open only for that namespace"}
		if diff := cmp.Diff(want, a.eventsOf(eventBreakerOpen)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", eventBreakerOpen, diff)
		}
		if diff := cmp.Diff([]string{"Namespace shop: restarts are granted again in the namespace"}, a.eventsOf(eventBreakerClosed)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", eventBreakerClosed, diff)
		}
	})
}

// All series exist from the start, also at a replica that does not lead: one for each decision and reason.
func TestMetricsFromTheStart(t *testing.T) {
	a := newAPI(t, restartbudget.Settings{})
	registry := prometheus.NewRegistry()
	newMetrics(a.r, registry)
	if n, err := testutil.GatherAndCount(registry); n != 18+1+1+1+len(allNotUsed)+int(whys) || err != nil {
		t.Errorf("%d series, %v", n, err)
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

func TestUnguarded(t *testing.T) {
	const sidecar = `{"container":"app","type":"liveness","guarded":true,"httpGet":{"path":"/","port":8080}}`
	exec := corev1.ProbeHandler{Exec: &corev1.ExecAction{}}
	get := func(host string, port intstr.IntOrString) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Host: host, Port: port}}
	}
	tcp := corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("db")}}
	for name, tc := range map[string]struct {
		probe       corev1.ProbeHandler
		table       string
		annotations map[string]string
		change      func(*corev1.Pod)
		want        string // "" if it is guarded
	}{
		"guarded":                {probe: get("", intstr.FromInt32(9000)), table: sidecar},
		"exec":                   {probe: exec, want: "exec"},
		"TCP in per-port mode":   {probe: tcp, table: `{"container":"app","type":"liveness","tcpSocket":{"port":1}}`, want: "per_port_tcp"},
		"gRPC in per-port mode":  {probe: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 9001}}, table: `{"container":"app","type":"liveness","grpc":{"port":1}}`, want: "per_port_grpc"},
		"other host":             {probe: get("example.com", intstr.FromInt32(80)), want: "other_host"},
		"excluded port":          {probe: get("", intstr.FromInt32(81)), change: excludes("80,81"), want: "excluded_port"},
		"excluded port, by name": {probe: tcp, change: excludes("5432"), want: "excluded_port"},
		"excluded later":         {probe: get("", intstr.FromInt32(81)), annotations: map[string]string{mesh.AnnotationExcludeInboundPorts: "81"}, want: "other"},
		"disabled":               {probe: get("", intstr.FromInt32(81)), annotations: map[string]string{mesh.AnnotationVirtualProbes: "disabled"}, want: "virtual_probes_disabled"},
		"starts first": {probe: get("", intstr.FromInt32(81)), want: "starts_first", change: func(p *corev1.Pod) {
			p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers[1:2], p.Spec.Containers[:1]
		}},
		"an unknown port":        {probe: get("", intstr.FromString("none")), want: "other"},
		"nothing asks":           {probe: corev1.ProbeHandler{}, want: "other"},
		"the pod is not guarded": {probe: exec, annotations: map[string]string{mesh.AnnotationGuardedLiveness: "disabled"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := guardedPod()
			o.Spec.Containers = o.Spec.Containers[:2]
			o.Spec.Containers[0].LivenessProbe = &corev1.Probe{ProbeHandler: exec} // the sidecar's own probe is ignored
			o.Spec.Containers[0].Env[0].Value = "[" + tc.table + "]"
			o.Spec.Containers[1].LivenessProbe = &corev1.Probe{ProbeHandler: tc.probe}
			o.Spec.Containers[1].Ports = []corev1.ContainerPort{{Name: "db", ContainerPort: 5432}}
			maps.Copy(o.Annotations, tc.annotations)
			if tc.change != nil {
				tc.change(o)
			}
			p, _ := readPod(o)
			var got []string
			for reason, n := range p.unguarded {
				for range n {
					got = append(got, whyNames[reason])
				}
			}
			if strings.Join(got, " ") != tc.want {
				t.Errorf("reasons %q, want %q", got, tc.want)
			}
		})
	}
}

// excludes changes a pod as the webhook does for mesh.AnnotationExcludeInboundPorts and the agent's ports.
func excludes(ports string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: mesh.ContainerInit, Args: []string{mesh.ArgExcludeInbound, ports}})
	}
}

// Containers whose agents are too old are not guarded, either.
func TestOldAgentsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		a.deploy("web", 2)
		a.r.o.Agents = func() Agents {
			return podAgents{said: a.said, old: []mesh.ID{"default/web-0.shop", "default/none.shop", "default/web-0"}}
		}
		registry := prometheus.NewRegistry()
		newMetrics(a.r, registry)
		a.wantMetric(registry, "sonde_liveness_unguarded", "old_agent", 0)
		defer a.lead(1)()
		a.fail("web-0")
		wait(time.Second)
		a.wantMetric(registry, "sonde_liveness_unguarded", "old_agent", 1)
		a.wantMetric(registry, "sonde_restart_grants_in_progress", "", 1)
	})
}

// Pods that the webhook has missed are counted in namespaces that are injected or guarded.
func TestMissedPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		missed := func(change func(*corev1.Pod)) *corev1.Pod {
			p := guardedPod()
			p.Annotations = map[string]string{}
			p.Spec.Containers = p.Spec.Containers[1:]
			p.Spec.Containers[0].LivenessProbe = &corev1.Probe{}
			if change != nil {
				change(p)
			}
			return p
		}
		annotated := func(key, value string) *corev1.Pod {
			return missed(func(p *corev1.Pod) { p.Annotations[key] = value })
		}
		for name, tc := range map[string]struct {
			pod     *corev1.Pod
			guarded bool
			want    int64
		}{
			"its namespace asks":       {missed(nil), true, 1},
			"nothing asks":             {missed(nil), false, 0},
			"the pod asks":             {annotated(mesh.AnnotationGuardedLiveness, "enabled"), false, 1},
			"the pod does not":         {annotated(mesh.AnnotationGuardedLiveness, "disabled"), true, 0},
			"OpenKruise's asks":        {annotated(mesh.AnnotationEnhancedLiveness, "true"), false, 1},
			"OpenKruise's does not":    {annotated(mesh.AnnotationEnhancedLiveness, "false"), true, 0},
			"a wrong value":            {annotated(mesh.AnnotationGuardedLiveness, "yes"), true, 0},
			"it is not injected":       {annotated(mesh.LabelInjection, "disabled"), true, 0},
			"on the node's network":    {missed(func(p *corev1.Pod) { p.Spec.HostNetwork = true }), true, 0},
			"Windows":                  {missed(func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }), true, 0},
			"ended":                    {missed(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), true, 0},
			"it has a sidecar":         {guardedPod(), true, 0},
			"it has no liveness probe": {missed(func(p *corev1.Pod) { p.Spec.Containers[0].LivenessProbe = nil }), true, 0},
		} {
			if got := missedProbes(tc.pod, tc.guarded); got != tc.want {
				t.Errorf("%s: %d probes, want %d", name, got, tc.want)
			}
		}
		registry := prometheus.NewRegistry()
		newMetrics(a.r, registry)
		a.namespaces = map[string]bool{"shop": true}
		a.mu.Lock()
		a.pods[watch.Key{Namespace: "shop", Name: "missed"}] = missed(nil)
		a.pods[watch.Key{Namespace: "other", Name: "missed"}] = missed(func(p *corev1.Pod) { p.Namespace = "other" })
		a.mu.Unlock()
		stop := a.lead(1)
		wait(time.Second)
		a.wantMetric(registry, "sonde_liveness_unguarded", "no_sidecar", 1)
		a.mu.Lock()
		clear(a.pods)
		a.mu.Unlock()
		wait(missedEvery)
		a.wantMetric(registry, "sonde_liveness_unguarded", "no_sidecar", 0)
		stop()
	})
}

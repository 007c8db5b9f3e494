package pods_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cni/pods"
	"github.com/sonde-mesh/sonde/cni/wire"
	"github.com/sonde-mesh/sonde/dpagent/redirect"
)

const redirection = `{"excludeInboundPorts":[9000],"families":"dualstack"}`

var web = pods.Key{Namespace: "shop", Name: "web-1"}

// world has pods, the API server's other pods, and the rules of namespaces.
type world struct {
	known    map[pods.Key]pods.Record
	missing  bool
	atServer map[pods.Key]pods.Record
	apiErr   error
	asked    int

	sandboxes []pods.Sandbox
	rules     map[string]string // rules by namespace; "" for none
	installs  int
	checks    int
	kernelErr error
}

func (w *world) Pods() (map[pods.Key]pods.Record, bool) { return w.known, !w.missing }

func (w *world) Pod(key pods.Key) (pods.Record, bool) {
	r, ok := w.known[key]
	return r, ok
}

func (w *world) Ask(_ context.Context, key pods.Key) (pods.Record, bool, error) {
	w.asked++
	r, ok := w.atServer[key]
	return r, ok, w.apiErr
}

func (w *world) Install(path string, o redirect.Options) error {
	if w.kernelErr != nil {
		return w.kernelErr
	}
	if err := o.Validate(); err != nil {
		return err
	}
	w.installs++
	w.rules[path] = redirect.Describe(o)
	return nil
}

func (w *world) Check(path string, o redirect.Options) ([]string, error) {
	w.checks++
	rules, ok := w.rules[path]
	switch {
	case !ok:
		return nil, fs.ErrNotExist
	case rules != redirect.Describe(o):
		return []string{"table inet sonde is missing"}, nil
	}
	return nil, nil
}

func (w *world) redirector() (*pods.Redirector, *prometheus.Registry) {
	registry := prometheus.NewRegistry()
	return &pods.Redirector{
		Source: w, Kernel: w, Sandboxes: func() ([]pods.Sandbox, error) { return w.sandboxes, nil },
		Logger: slog.New(slog.DiscardHandler), Metrics: pods.NewMetrics(registry),
	}, registry
}

func TestHandle(t *testing.T) {
	ours, other := pods.Record{UID: "u1", Redirection: redirection}, pods.Record{UID: "u1"}
	before := pods.Record{UID: "u0", Redirection: redirection}
	tests := map[string]struct {
		world    world
		uid      string
		verb     wire.Verb
		redirect bool
		asked    int
		err      string
		result   string
	}{
		"a pod of the mesh":         {world: world{known: map[pods.Key]pods.Record{web: ours}}, uid: "u1", redirect: true, result: "redirected"},
		"runtime without UIDs":      {world: world{known: map[pods.Key]pods.Record{web: ours}}, redirect: true, result: "redirected"},
		"another pod":               {world: world{known: map[pods.Key]pods.Record{web: other}}, uid: "u1", result: "not-in-mesh"},
		"not known yet":             {world: world{atServer: map[pods.Key]pods.Record{web: ours}}, uid: "u1", redirect: true, asked: 1, result: "redirected"},
		"made anew under its name":  {world: world{known: map[pods.Key]pods.Record{web: before}, atServer: map[pods.Key]pods.Record{web: other}}, uid: "u1", asked: 1, result: "not-in-mesh"},
		"gone since":                {world: world{atServer: map[pods.Key]pods.Record{web: before}}, uid: "u1", asked: 1, result: "unknown"},
		"not at the API server":     {world: world{}, uid: "u1", asked: 1, result: "unknown"},
		"API server away":           {world: world{apiErr: errors.New("away")}, uid: "u1", asked: 1, result: "unknown"},
		"a static pod":              {world: world{known: map[pods.Key]pods.Record{web: {UID: "mirror", Static: true}}}, uid: "u1", result: "not-in-mesh"},
		"kernel without nftables":   {world: world{known: map[pods.Key]pods.Record{web: ours}, kernelErr: errors.New("the kernel lacks nftables")}, uid: "u1", err: "the kernel lacks nftables", result: "failed"},
		"of a later release":        {world: world{known: map[pods.Key]pods.Record{web: {UID: "u1", Redirection: `{"families":"ipv4","later":1}`}}}, uid: "u1", err: `SONDE_REDIRECTION of kuma-sidecar: parse redirection: json: unknown field "later"`, result: "failed"},
		"not a port":                {world: world{known: map[pods.Key]pods.Record{web: {UID: "u1", Redirection: `{"families":"ipv4","excludeInboundPorts":[15022]}`}}}, uid: "u1", err: "must be redirected", result: "failed"},
		"another verb":              {world: world{known: map[pods.Key]pods.Record{web: ours}}, uid: "u1", verb: "DEL", err: `"DEL": must be ADD or CHECK`, result: "failed"},
		"check without rules":       {world: world{known: map[pods.Key]pods.Record{web: ours}, rules: map[string]string{"/ns": ""}}, uid: "u1", verb: wire.Check, err: "1 rules differ: table inet sonde is missing", result: "failed"},
		"check of a pod not ours":   {world: world{known: map[pods.Key]pods.Record{web: other}}, uid: "u1", verb: wire.Check, result: "not-in-mesh"},
		"kernel of a pod, not ours": {world: world{known: map[pods.Key]pods.Record{web: other}, kernelErr: errors.New("no")}, uid: "u1", result: "not-in-mesh"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := &tc.world
			if w.rules == nil {
				w.rules = map[string]string{}
			}
			r, registry := w.redirector()
			if tc.verb == "" {
				tc.verb = wire.Add
			}
			err := r.Handle(t.Context(), wire.Request{Verb: tc.verb, NetNS: "/ns", Namespace: web.Namespace, Pod: web.Name, UID: tc.uid})
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("Handle() = %v, want %q", err, tc.err)
			}
			if got := strings.Contains(w.rules["/ns"], "table inet sonde"); got != tc.redirect || w.asked != tc.asked {
				t.Errorf("redirected %t, API server asked %d times, want %t, %d", got, w.asked, tc.redirect, tc.asked)
			}
			var want strings.Builder
			want.WriteString("# HELP sonde_cni_requests_total Requests of the CNI plugin, by result: redirected, not-in-mesh, unknown (the pod could not be read, and starts) or failed.\n# TYPE sonde_cni_requests_total counter\n")
			for _, result := range []string{"failed", "not-in-mesh", "redirected", "unknown"} {
				count := "0"
				if result == tc.result {
					count = "1"
				}
				fmt.Fprintf(&want, "sonde_cni_requests_total{result=%q} %s\n", result, count)
			}
			if err := testutil.GatherAndCompare(registry, strings.NewReader(want.String()), "sonde_cni_requests_total"); err != nil {
				t.Error(err)
			}
		})
	}
}

// The daemon did not run when these pods started.
func TestRepair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := func(name string) pods.Key { return pods.Key{Namespace: "shop", Name: name} }
		ours := func(uid string) pods.Record { return pods.Record{UID: uid, Redirection: redirection} }
		w := &world{
			known: map[pods.Key]pods.Record{
				key("a"): ours("ua"), key("not-in-mesh"): {UID: "un"},
				key("scheduled"): ours("us"), key("broken"): {UID: "ub", Redirection: "{}"}, key("anew"): ours("u2"),
			},
			sandboxes: []pods.Sandbox{
				{Key: key("a"), UID: "ua", NetNS: "/a"}, {Key: key("a"), UID: "ua", NetNS: "/gone"}, {Key: key("not-in-mesh"), UID: "un", NetNS: "/n"},
				{Key: key("broken"), UID: "ub", NetNS: "/b"}, {Key: key("anew"), UID: "u1", NetNS: "/u1"}, {Key: key("anew"), NetNS: "/u2"},
			},
			rules: map[string]string{"/a": "", "/b": "", "/n": "", "/u1": "", "/u2": ""},
		}
		r, registry := w.redirector()
		w.missing = true
		if broken, err := r.Repair(); err != nil || len(broken) > 0 || w.installs > 0 {
			t.Fatalf("Repair() before the pods are known = %v, %v", broken, err)
		}
		w.missing = false
		broken, err := r.Repair()
		if err != nil || len(broken) != 1 || broken[0].Key != key("broken") || !strings.Contains(broken[0].Err.Error(), "Families: must be") {
			t.Errorf("Repair() = %v, %v", broken, err)
		}
		for path, want := range map[string]bool{"/a": true, "/n": false, "/u1": false, "/u2": true} {
			if got := w.rules[path] != ""; got != want {
				t.Errorf("%s has rules: %t, want %t", path, got, want)
			}
		}
		if n := testutil.CollectAndCount(registry, "sonde_cni_pods"); n != 3 || w.installs != 2 {
			t.Errorf("%d series of pods, %d installations", n, w.installs)
		}

	})
}

// Runtimes such as containerd 1.7 do not record network namespaces. The daemon cannot check pods that started before
// it, but knows the others.
func TestRepairWithoutNetNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := pods.Key{Namespace: "shop", Name: "before"}
		w := &world{
			known: map[pods.Key]pods.Record{web: {UID: "u", Redirection: redirection}, before: {UID: "ub", Redirection: redirection}},
			rules: map[string]string{},
		}
		r, registry := w.redirector()
		var log bytes.Buffer
		r.Logger = slog.New(slog.NewTextHandler(&log, nil))
		if err := r.Handle(t.Context(), wire.Request{Verb: wire.Add, ContainerID: "c", NetNS: "/c", Namespace: web.Namespace, Pod: web.Name, UID: "u"}); err != nil {
			t.Fatal(err)
		}
		w.sandboxes = []pods.Sandbox{{Key: web, UID: "u", ContainerID: "c"}, {Key: before, UID: "ub", ContainerID: "b"}}
		for range 100 {
			if broken, err := r.Repair(); err != nil || len(broken) > 0 {
				t.Fatalf("Repair() = %v, %v", broken, err)
			}
			time.Sleep(5 * time.Second)
		}
		if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "shop/before") {
			t.Errorf("the log has %d lines: %s", n, log.String())
		}
		const want = "# HELP sonde_cni_pods Running pods of the node that the plugin redirects, by state: redirected, broken if their rules cannot be written, or unknown if the container runtime does not record their network namespaces.\n# TYPE sonde_cni_pods gauge\n" +
			`sonde_cni_pods{state="broken"} 0
sonde_cni_pods{state="redirected"} 1
sonde_cni_pods{state="unknown"} 1
`
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "sonde_cni_pods"); err != nil {
			t.Error(err)
		}
	})
}

// Correct rules are not checked again at once.
func TestRepairAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			known:     map[pods.Key]pods.Record{web: {UID: "u", Redirection: redirection}},
			sandboxes: []pods.Sandbox{{Key: web, UID: "u", NetNS: "/a"}},
			rules:     map[string]string{"/a": ""},
		}
		r, _ := w.redirector()
		repair := func() {
			t.Helper()
			if broken, err := r.Repair(); err != nil || len(broken) > 0 {
				t.Fatalf("Repair() = %v, %v", broken, err)
			}
		}
		repair()
		checks := w.checks
		repair()
		if w.checks != checks {
			t.Errorf("rules were read %d times at once", w.checks-checks)
		}
		w.rules["/a"] = ""
		time.Sleep(3 * time.Minute)
		repair()
		if w.rules["/a"] == "" {
			t.Error("rules that were removed are missing after three minutes")
		}
	})
}

// A broken pod is logged when its error changes. The author of a pod can make the error long.
func TestRepairLogs(t *testing.T) {
	w := &world{
		known:     map[pods.Key]pods.Record{web: {UID: "u", Redirection: `{"` + strings.Repeat("x", 60_000) + `":1}`}},
		sandboxes: []pods.Sandbox{{Key: web, UID: "u", NetNS: "/a"}},
		rules:     map[string]string{"/a": ""},
	}
	r, _ := w.redirector()
	var log bytes.Buffer
	r.Logger = slog.New(slog.NewTextHandler(&log, nil))
	repair := func(want string) {
		t.Helper()
		log.Reset()
		if _, err := r.Repair(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(log.String(), want) || (log.Len() == 0) != (want == "") || log.Len() > 2000 {
			t.Errorf("the log has %d bytes: %.200s, want %q", log.Len(), log.String(), want)
		}
	}
	repair("unknown field")
	repair("")
	w.known[web] = pods.Record{UID: "u", Redirection: "{}"}
	repair("Families")
	repair("")
	w.known[web] = pods.Record{UID: "u"}
	repair("")
	w.known[web] = pods.Record{UID: "u", Redirection: "{}"}
	repair("Families")

	log.Reset()
	w.known[web] = pods.Record{UID: "u", Redirection: `{"families":"ipv4","excludeInboundPorts":[0` + strings.Repeat(",0", 1999) + "]}"}
	if err := r.Handle(t.Context(), wire.Request{Verb: wire.Add, Namespace: web.Namespace, Pod: web.Name}); err == nil || log.Len() > 2000 {
		t.Errorf("Handle() = %.200v, logged %d bytes", err, log.Len())
	}
}

func TestRead(t *testing.T) {
	injected := func(change func(*corev1.Pod)) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u1"}, Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: mesh.ContainerSidecar, Env: []corev1.EnvVar{{Name: mesh.EnvRedirection, Value: redirection}}}},
			Volumes:        []corev1.Volume{{Name: mesh.VolumeIdentity}},
		}}
		change(pod)
		return pod
	}
	tests := map[string]struct {
		change func(*corev1.Pod)
		want   pods.Record
	}{
		"of the mesh": {func(*corev1.Pod) {}, pods.Record{UID: "u1", Redirection: redirection}},
		"ended":       {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, pods.Record{UID: "u1"}},
		"too long": {func(p *corev1.Pod) { p.Spec.InitContainers[0].Env[0].Value = redirection + strings.Repeat(" ", 1<<20) }, pods.Record{
			UID: "u1", Redirection: redirection + strings.Repeat(" ", mesh.MaxRedirectionBytes+1-len(redirection)),
		}},
		"with kuma-init": {func(p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: mesh.ContainerInit})
		}, pods.Record{UID: "u1"}},
		"of another mesh":    {func(p *corev1.Pod) { p.Spec.Volumes = nil }, pods.Record{UID: "u1"}},
		"ordinary container": {func(p *corev1.Pod) { p.Spec.Containers, p.Spec.InitContainers = p.Spec.InitContainers, nil }, pods.Record{UID: "u1"}},
		"the node's network": {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, pods.Record{UID: "u1"}},
		"a static pod":       {func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }, pods.Record{UID: "u1", Static: true}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got, ok := pods.Read(injected(tc.change)); got != tc.want || !ok {
				t.Errorf("Read() = %+v, %t, want %+v", got, ok, tc.want)
			}
		})
	}
}

package check

import (
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// now is the time of all tests.
var now = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

var errForbidden = apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "", errors.New("no right"))

// tests maps names to facts and the expected lines of a check.
type tests map[string]struct {
	facts facts
	want  string
}

func (all tests) run(t *testing.T, check check) {
	t.Helper()
	for name, tc := range all {
		t.Run(name, func(t *testing.T) {
			tc.facts.now, tc.facts.namespace = now, "sonde-system"
			var out printer.Output
			for _, l := range check.lines(&tc.facts) {
				l.write(&out)
			}
			if diff := cmp.Diff(strings.TrimPrefix(tc.want, "\n"), out.String()); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

// is returns a successful read.
func is[T any](value T) read[T] { return read[T]{is: value} }

func named(name string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: labels}
}

func node(name, kubelet, kernel, architecture string) corev1.Node {
	n := corev1.Node{ObjectMeta: named(name, nil)}
	n.Status.NodeInfo = corev1.NodeSystemInfo{KubeletVersion: kubelet, KernelVersion: kernel, Architecture: architecture, OperatingSystem: "linux"}
	return n
}

func TestVersions(t *testing.T) {
	tests{
		"new enough": {facts{server: "v1.30.0"}, "[ok]   API server: v1.30.0\n"},
		"too old": {facts{server: "v1.28.15-gke.1"}, `
[fail] API server: v1.28.15-gke.1 is older than Kubernetes 1.29, which Sonde needs
       do: upgrade the cluster
`},
		"without policies": {facts{server: "v1.29.3"}, `
[warn] API server: v1.29.3 has no ValidatingAdmissionPolicies: the control plane cannot make controllers recreate pods after an outage, and does not write pod conditions
       do: upgrade the cluster to Kubernetes 1.30, or accept these limits
`},
		"nonsense": {facts{server: "\x1b[1m"}, `
[warn] API server: "\x1b[1m" is not a version of Kubernetes
       do: make sure that it supports the features of Kubernetes 1.29
`},
	}.run(t, apiServer)
	windows, silent := node("w", "v1.20.0", "10.0.1", "amd64"), node("s", "", "", "")
	windows.Status.NodeInfo.OperatingSystem = "windows"
	good := is([]corev1.Node{node("a", "v1.36.3", "6.8.0-45-generic", "amd64"), node("b", "v1.35.4", "5.10.0", "amd64"), windows, silent})
	bad := is([]corev1.Node{node("a", "v1.28.0", "5.4.0-150", "amd64"), node("b", "v1.28.0", "nonsense", "arm64"), node("c", "v1.36.3", "6.8.0", "amd64")})
	var some []corev1.Node
	for _, is := range []string{"v1.33.6", "v1.34.2", "v1.35.4", "v1.36.0", "v1.37.0-alpha.1"} {
		some = append(some, node(is, is, "6.8.0", "amd64"))
	}
	mended := is(some)
	faulty := is([]corev1.Node{
		node("a", "v1.35.0", "6.8.0", "amd64"), node("b", "v1.35.3-gke.7", "6.8.0", "amd64"), node("c", "v1.34.1", "6.8.0", "amd64"), node("d", "v1.30.4-eks-1", "6.8.0", "amd64"),
		node("e", "v1.32.9", "6.8.0", "amd64"),
	})
	const do = "       do: upgrade these nodes to the latest patch release, unless your provider has backported the fix; delete stuck pods. Sidecars that are ordinary containers, with config.runtime.kubernetes.injector.sidecarForm=container, are not affected\n"
	tests{
		"new enough": {facts{nodes: good}, "[ok]   kubelets: 2 nodes, v1.35.4, v1.36.3\n"},
		"none":       {facts{}, "[ok]   kubelets: 0 nodes\n"},
		"too old": {facts{nodes: bad}, `
[fail] kubelets: older than Kubernetes 1.29, the first version with native sidecars: injected pods would not start there
       v1.28.0: a, b
       do: upgrade these nodes, or install with --set config.runtime.kubernetes.injector.sidecarForm=container
[warn] kubelets: Sonde has no image for some nodes: injected pods would not start there
       arm64: b
       do: keep injected pods away from these nodes, with a nodeSelector kubernetes.io/arch: amd64
`},
		"with faults": {facts{nodes: faulty}, `
[warn] kubelets: injected pods may get stuck on these nodes: after the kubelet restarts, it does not restart containers of pods that were already running (kubernetes#137146)
       v1.35.0: a
       v1.35.3-gke.7: b
` + do + `[warn] kubelets: injected pods may get stuck on these nodes: with restartPolicy Never, the containers never start if the sidecar restarts before it is ready and another container has a startup probe (kubernetes#132826)
       v1.30.4-eks-1: d
       v1.32.9: e
       v1.34.1: c
` + do + `[warn] kubelets: injected pods may get stuck on these nodes: if the container runtime fails once to start an init container, the pod stays in Init forever (kubernetes#127213)
       v1.30.4-eks-1: d
` + do},
		"with faults that are mended": {facts{nodes: mended}, "[ok]   kubelets: 5 nodes, v1.33.6, v1.34.2, v1.35.4, v1.36.0, v1.37.0-alpha.1\n"},
		"may not be read": {facts{nodes: read[[]corev1.Node]{err: fmt.Errorf("list nodes: %w", errForbidden)}}, `
[warn] kubelets: not checked: list nodes: things is forbidden: no right
       do: get the right, or ask a user who has it to check
`},
		"cannot be read": {facts{nodes: read[[]corev1.Node]{err: errors.New("no answer")}}, `
[warn] kubelets: not checked: no answer
       do: fix the error, and check again
`},
	}.run(t, kubelets)
	tests{
		"new enough": {facts{nodes: good}, "[ok]   kernels: 2 nodes, 5.10.0, 6.8.0-45-generic\n"},
		"too old": {facts{nodes: bad}, `
[fail] kernels: older than Linux 5.10, which the agent needs to watch Envoy: injected pods would not start there
       5.4.0-150: a
       nonsense: b
       do: upgrade the kernel of these nodes, or keep injected pods away from them
`},
	}.run(t, kernels)
}

// Lines are safe for a terminal and end with the number of omitted notes. A failing line sets the exit code.
func TestWrite(t *testing.T) {
	lines := []Line{
		{Name: "a", Level: OK, Text: "good\x1b[31m"},
		{Name: "b", Level: Fail, Text: "bad", Notes: []string{"1", "2", "3", "4", "5", "6", "7"}, Do: "mend\nit"},
	}
	for format, want := range map[printer.Format]string{
		printer.Text: "[ok]   a: good [31m\n[fail] b: bad\n       1\n       2\n       3\n       4\n       5\n       2 more: see -o yaml\n       do: mend it\n",
		printer.JSON: `[
  {
    "name": "a",
    "level": "ok",
    "text": "good\u001b[31m"
  },
  {
    "name": "b",
    "level": "fail",
    "text": "bad",
    "notes": [
      "1",
      "2",
      "3",
      "4",
      "5",
      "6",
      "7"
    ],
    "do": "mend\nit"
  }
]
`,
		printer.YAML: "- name: a\n  level: ok\n  text: \"good\\e[31m\"\n- name: b\n  level: fail\n  text: bad\n  do: |-\n    mend\n    it\n  notes:\n    - \"1\"\n    - \"2\"\n    - \"3\"\n    - \"4\"\n    - \"5\"\n    - \"6\"\n    - \"7\"\n",
	} {
		var out printer.Output
		err := write(&out, lines, format)
		if exit.Code(err) != exit.Unhealthy || !exit.HasOutput(err) || err.Error() != "1 check failed" {
			t.Errorf("%s: write() = %v, want exit code 6", format, err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", format, diff)
		}
		if err := write(&out, lines[:1], format); err != nil {
			t.Errorf("%s: write() of a line that is ok = %v", format, err)
		}
	}
}

// docs/reference/check.md describes each check.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../../../docs/reference/check.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, check := range append(slices.Concat(before, installed), triedNodes, triedLiveness) {
		for _, l := range check.lines(&facts{
			deployment: read[*appsv1.Deployment]{err: errForbidden}, servingCA: read[[]*x509.Certificate]{err: errForbidden}, dryRun: dryRun{err: errForbidden},
			tried: is(tried{outcomes: []outcome{{liveness: discards}}}), gates: is(gates{asked: 1}),
		}) {
			named[l.Name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if !regexp.MustCompile("(?m)^\\|[^|]*`" + regexp.QuoteMeta(name) + "`[^|]*\\|").Match(page) {
			t.Errorf("docs/reference/check.md says nothing of the line %q", name)
		}
	}
	if len(named) != len(before)+len(installed)-8 { // ten checks are in both lists, and two are for --nodes
		t.Errorf("%d lines have names, want one of each check", len(named))
	}
}

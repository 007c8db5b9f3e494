package check

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/cluster"
	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/settings"
)

func TestTriedNodes(t *testing.T) {
	found := func(outcomes ...outcome) facts {
		return facts{tried: is(tried{namespace: "shop", image: "sonde:1", within: time.Minute, outcomes: outcomes})}
	}
	good := func(node, kernel string) outcome { return outcome{node: node, kernel: kernel} }
	bad := func(node string, p problem, reason string) outcome {
		return outcome{node: node, kernel: "6.8.0", problem: p, reason: reason}
	}
	const podSecurity = `violates PodSecurity "restricted:latest": unrestricted capabilities`
	tests{
		"all can":          {found(good("a", "6.8.0-45-generic"), good("b", "6.1.0"), good("c", "6.10.3")), "[ok]   nodes: 3 nodes can redirect: nftables, kernel 6.1 to 6.10\n"},
		"one kernel":       {found(good("a", "6.8.0-45-generic"), good("b", "6.8.4")), "[ok]   nodes: 2 nodes can redirect: nftables, kernel 6.8\n"},
		"a strange kernel": {found(good("a", "nonsense")), "[ok]   nodes: 1 node can redirect: nftables\n"},
		"each fault": {
			found(
				bad("a", refuses, "the kernel lacks redirection"), bad("c", refuses, "the kernel lacks redirection"), bad("b", refuses, "the kernel lacks nftables"),
				bad("d", unpulled, "not found"), bad("e", unstarted, "not scheduled: Insufficient memory"), good("f", "6.8.0"),
			), `
[fail] nodes: redirection fails: injected pods would not start on these nodes
       the kernel lacks nftables: b
       the kernel lacks redirection: a, c
       do: fix the errors on these nodes, or keep injected pods away from them
[fail] nodes: image sonde:1 cannot be pulled: injected pods would not start on these nodes
       not found: d
       do: make sure that the nodes reach the registry, and that service account default of namespace shop has its imagePullSecrets; --nodes-image sets another image
[fail] nodes: no pod could run the test within 1m0s
       not scheduled: Insufficient memory: e
       do: fix the errors (see kubectl describe node), or allow more time with --nodes-timeout
[ok]   nodes: 1 node can redirect: nftables, kernel 6.8
`,
		},
		"refused": {facts{tried: is(tried{namespace: "shop", refused: apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, jobName, errors.New(podSecurity))})}, `
[fail] nodes: cannot create a pod that redirects connections in namespace shop: pods "sondectl-check" is forbidden: violates PodSecurity "restricted:latest": unrestricted capabilities
       do: set --nodes-namespace to a namespace for pods of the mesh: its Pod Security must allow NET_ADMIN (pod-security.kubernetes.io/enforce: privileged)
`},
		"left out": {facts{tried: is(tried{outcomes: []outcome{good("a", "6.8")}, leftOut: map[string][]string{"not Ready": {"b", "c"}, "cordoned": {"d"}}})}, `
[ok]   nodes: 1 node can redirect: nftables, kernel 6.8
[warn] nodes: some nodes are not tested
       cordoned: d
       not Ready: b, c
       do: check again when they accept pods; until then, keep injected pods away from them
`},
		"none": {found(), `
[warn] nodes: the cluster has no nodes to test
       do: check again when the cluster has nodes
`},
		"Jobs are left": {facts{tried: is(tried{namespace: "shop", outcomes: []outcome{good("a", "6.8")}, kept: []string{"sondectl-check-x-0: delete it: no answer"}})}, `
[ok]   nodes: 1 node can redirect: nftables, kernel 6.8
[warn] nodes: Jobs could not be deleted: Kubernetes deletes them 1m0s after they end
       sondectl-check-x-0: delete it: no answer
       do: kubectl -n shop delete jobs -l app.kubernetes.io/name=sondectl-check
`},
		"no right": {facts{tried: read[tried]{err: errForbidden}}, `
[warn] nodes: not checked: things is forbidden: no right
       do: get the right, or ask a user who has it to check
`},
	}.run(t, triedNodes)
}

// Outcomes of a node from a pod's status, and whether they are final.
func TestJudge(t *testing.T) {
	container := func(s corev1.ContainerState) corev1.Pod {
		p := corev1.Pod{Spec: corev1.PodSpec{NodeName: "a"}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: mesh.ContainerInit, State: s}}
		return p
	}
	ended := func(code int32, reason, message string) corev1.Pod {
		return container(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message}})
	}
	waits := func(reason, message string) corev1.Pod {
		return container(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}})
	}
	pending := corev1.Pod{}
	pending.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/2 nodes are available: 1 Insufficient cpu."}}
	failed := corev1.Pod{}
	failed.Status.Phase, failed.Status.Reason, failed.Status.Message = corev1.PodFailed, "OutOfcpu", "Node didn't have enough resource: cpu"
	others := ended(0, "Completed", "")
	others.Status.ContainerStatuses[0].Name = "istio-proxy"
	for name, tc := range map[string]struct {
		pod    corev1.Pod
		want   problem
		reason string
		done   bool
	}{
		"it can":                   {ended(0, "Completed", ""), "", "", true},
		"redirection fails":        {ended(1, "Error", "table inet sonde {\n}\nsonde-dp: install: no such file: the kernel lacks nftables\n"), refuses, "sonde-dp: install: no such file: the kernel lacks nftables", true},
		"no program":               {ended(128, "StartError", "exec: sonde-dp: not found"), unstarted, "ended with exit code 128 (StartError): exec: sonde-dp: not found", true},
		"memory":                   {ended(137, "OOMKilled", ""), unstarted, "ended with exit code 137 (OOMKilled)", true},
		"no image":                 {waits("ErrImagePull", `failed to pull "x": not found`), unpulled, `failed to pull "x": not found`, true},
		"no image, without a word": {waits("ImagePullBackOff", ""), unpulled, "ImagePullBackOff", true},
		"it begins":                {waits("ContainerCreating", ""), unstarted, "its container has not ended", false},
		"no container":             {waits("CreateContainerError", "context deadline exceeded"), unstarted, "CreateContainerError: context deadline exceeded", false},
		"the kubelet refuses it":   {failed, unstarted, "OutOfcpu: Node didn't have enough resource: cpu", true},
		"no room":                  {pending, unstarted, "not scheduled: 0/2 nodes are available: 1 Insufficient cpu.", false},
		"no scheduler":             {corev1.Pod{}, unstarted, "not scheduled", false},
		"of another container":     {others, unstarted, "its container has not ended", false},
	} {
		t.Run(name, func(t *testing.T) {
			is, reason, done := outcomeOf(&tc.pod)
			if is != tc.want || reason != tc.reason || done != tc.done {
				t.Errorf("outcomeOf() = %q, %q, %v, want %q, %q, %v", is, reason, done, tc.want, tc.reason, tc.done)
			}
		})
	}
}

func TestChoose(t *testing.T) {
	ready := func(name string, change func(*corev1.Node)) corev1.Node {
		n := node(name, "v1.36.3", "6.8.0", "amd64")
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if change != nil {
			change(&n)
		}
		return n
	}
	all := []corev1.Node{
		ready("z-windows", func(n *corev1.Node) { n.Status.NodeInfo.OperatingSystem = "windows" }),
		ready("z-cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = true }),
		ready("z-lost", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }), node("z-new", "", "", ""),
	}
	for i := range nodesAtMost + 2 {
		all = append(all, ready(fmt.Sprintf("node-%03d", i), nil))
	}
	try, leftOut := choose(all)
	want := map[string][]string{
		"Windows: no pods are injected": {"z-windows"}, "cordoned": {"z-cordoned"}, "not Ready": {"z-lost", "z-new"}, "beyond the first 200": {"node-200", "node-201"},
	}
	if diff := cmp.Diff(want, leftOut); diff != "" || len(try) != nodesAtMost || try[0].Name != "node-000" || try[nodesAtMost-1].Name != "node-199" {
		t.Errorf("choose() = %d nodes, left out (-want +got):\n%s", len(try), diff)
	}
}

// The pod runs the sidecar's init container, is not injected, and its Job is for one node only.
func TestTrialPod(t *testing.T) {
	pod, err := trialPod("sonde:1")
	if err != nil {
		t.Fatal(err)
	}
	type made struct {
		Containers, Others int
		Image              string
		Command            []string
		Added              []corev1.Capability
		Messages           corev1.TerminationMessagePolicy
	}
	c := pod.Spec.Containers[0]
	is := made{len(pod.Spec.Containers), len(pod.Spec.InitContainers) + len(pod.Spec.Volumes), c.Image, c.Command, c.SecurityContext.Capabilities.Add, c.TerminationMessagePolicy}
	want := made{2, 0, "sonde:1", []string{mesh.AgentProgram, "install", "transparent-proxy"}, []corev1.Capability{"NET_ADMIN"}, corev1.TerminationMessageFallbackToLogsOnError}
	if diff := cmp.Diff(want, is); diff != "" || pod.Spec.HostNetwork {
		t.Errorf("trialPod() (-want +got):\n%s", diff)
	}
	wantAsked := &corev1.Probe{
		ProbeHandler:        corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/tcp/1", Port: intstr.FromInt(9000), HTTPHeaders: []corev1.HTTPHeader{{Name: mesh.ProbeHeader, Value: "liveness-liveness"}}}},
		InitialDelaySeconds: 3, TimeoutSeconds: mesh.GuardedTimeoutSeconds, PeriodSeconds: 1, FailureThreshold: 1,
	}
	asked := pod.Spec.Containers[1]
	if diff := cmp.Diff(wantAsked, asked.LivenessProbe); diff != "" || !*asked.SecurityContext.RunAsNonRoot || len(asked.Env) != 2 {
		t.Errorf("the container whose liveness probe is errored (-want +got):\n%s", diff)
	}
	if !slices.Contains(c.Args, "--guarded-port=9000") {
		t.Errorf("the redirection of its port is %q", c.Args)
	}
	lines := notInjected.lines(&facts{pods: podsOf(func() corev1.Pod { p := *pod; p.Namespace = "shop"; return p }()), namespaces: namespacesOf("enabled")})
	if len(lines) != 1 || lines[0].Text != "0 pods have a sidecar, no pod lacks one" {
		t.Errorf("in a namespace whose pods are injected: %v", lines)
	}
	job := jobOn("node1", "sondectl-check-x-0", pod, 30*time.Second)
	if job.Spec.Template.Spec.Affinity == nil || pod.Spec.Affinity != nil || *job.Spec.ActiveDeadlineSeconds != 40 || *job.Spec.TTLSecondsAfterFinished != 60 {
		t.Errorf("jobOn() = %+v", job.Spec)
	}
}

// Invalid flags: nothing is requested.
func TestNodesFlags(t *testing.T) {
	asked := errors.New("the cluster is asked")
	for args, want := range map[string]string{
		"--nodes": `--nodes-image: must be set with --nodes and without --installed: the image of the sidecar, which the nodes pull`,
		"--nodes --installed --nodes-namespace=Shop":             `--nodes-namespace: "Shop": must be the name of a namespace`,
		"--nodes --installed --nodes-namespace=":                 `--nodes-namespace: must be the name of a namespace`,
		"--nodes --nodes-image=a\tb":                             `--nodes-image: "a\tb": must be the name of an image`,
		"--nodes --installed --nodes-timeout=0s":                 `--nodes-timeout: "0s": must be from 1s to 10m0s`,
		"--nodes --installed --nodes-timeout=11m":                `--nodes-timeout: "11m0s": must be from 1s to 10m0s`,
		"--nodes-namespace=shop":                                 `--nodes-namespace: "shop": must not be given without --nodes`,
		"--nodes-image=sonde:1":                                  `--nodes-image: "sonde:1": must not be given without --nodes`,
		"--installed --nodes-timeout=1m":                         `--nodes-timeout: "1m0s": must not be given without --nodes`,
		"--nodes --nodes-image=sonde:1":                          asked.Error(),
		"--nodes --installed":                                    asked.Error(),
		"--nodes --installed --nodes-image=s --nodes-timeout=1s": asked.Error(),
	} {
		cmd := Command(&printer.Output{}, Options{Cluster: func() (*cluster.Cluster, error) { return nil, asked }})
		settings.Install(cmd, settings.Options{Prefix: "SONDECTL_", Unknown: func(*cobra.Command, []string) {}})
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetArgs(strings.Split(args, " "))
		_, err := settings.Execute(t.Context(), cmd)
		if err == nil || err.Error() != want || !errors.Is(err, asked) && exit.Code(err) != exit.Usage {
			t.Errorf("check %s: %v (exit code %d), want %s", args, err, exit.Code(err), want)
		}
	}
}

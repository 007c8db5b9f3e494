package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"syscall"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/harness"
)

// workers are nodes, with the container states that their kubelets report for a Job's pod.
type workers struct {
	*testing.T
	client    kubernetes.Interface
	namespace string
	asked     corev1.ContainerState // of the container whose liveness probe returns an error
}

// newWorkers creates two nodes that are Ready and one cordoned node, until the test ends.
func newWorkers(t *testing.T, client kubernetes.Interface, namespaceOfJobs string) *workers {
	t.Helper()
	namespace(t, client, namespaceOfJobs, nil)
	nodes := client.CoreV1().Nodes()
	for name, kernel := range map[string]string{"worker-a": "6.1.0-13-amd64", "worker-b": "6.8.0-45-generic", "worker-c": "6.8.0"} {
		n, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Unschedulable: name == "worker-c"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := nodes.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		n.Status.NodeInfo = corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64", KernelVersion: kernel, KubeletVersion: "v1.36.3"}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if _, err := nodes.UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return &workers{t, client, namespaceOfJobs, ended(0, "")}
}

// say creates the pods of Jobs, as the Job controller and the scheduler do, with each node's container states, until
// stop is called.
func (w *workers) say(states map[string]corev1.ContainerState) (stop func()) {
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		watch, err := w.client.BatchV1().Jobs(w.namespace).Watch(ctx, metav1.ListOptions{})
		if err != nil {
			w.Error(err)
			return
		}
		defer watch.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case e := <-watch.ResultChan():
				job, is := e.Object.(*batchv1.Job)
				if !is || e.Type != "ADDED" {
					continue
				}
				if err := w.run(ctx, job, states); err != nil && ctx.Err() == nil {
					w.Error(err)
				}
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func (w *workers) run(ctx context.Context, job *batchv1.Job, states map[string]corev1.ContainerState) error {
	spec := *job.Spec.Template.Spec.DeepCopy()
	node := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
	state, known := states[node]
	if !known {
		return fmt.Errorf("a Job for node %s", node)
	}
	spec.NodeName = node
	pod, err := w.client.CoreV1().Pods(w.namespace).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: job.Name, Labels: job.Spec.Template.Labels}, Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: mesh.ContainerInit, Image: spec.Containers[0].Image, State: state}, {Name: spec.Containers[1].Name, Image: spec.Containers[1].Image, State: w.asked},
	}
	_, err = w.client.CoreV1().Pods(w.namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

// awaitJobs waits until n Jobs exist.
func (w *workers) awaitJobs(n int) error {
	return harness.Poll(w.Context(), "the Jobs", func(ctx context.Context) error {
		jobs, err := w.client.BatchV1().Jobs(w.namespace).List(ctx, metav1.ListOptions{})
		if err == nil && len(jobs.Items) != n {
			err = fmt.Errorf("%d Jobs exist, want %d", len(jobs.Items), n)
		}
		return err
	})
}

// noJobs checks that no Job is left.
func (w *workers) noJobs() {
	w.Helper()
	jobs, err := w.client.BatchV1().Jobs(w.namespace).List(w.Context(), metav1.ListOptions{})
	if err != nil || len(jobs.Items) > 0 {
		w.Errorf("%d Jobs are left, %v", len(jobs.Items), err)
	}
}

func ended(code int32, message string) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error", Message: message}}
}

const cordoned = `[warn] nodes: some nodes are not tested
       cordoned: worker-c
       do: check again when they accept pods; until then, keep injected pods away from them
`

// The check names nodes that cannot redirect, have no image, or start no container, with the reason. After the
// repair, they pass. No Job is left.
func TestCheckNodes(t *testing.T) {
	client := newClient(t)
	w := newWorkers(t, client, "check-nodes")
	p := administrator(t)
	args := []string{"--nodes", "--nodes-image=sonde:1", "--nodes-namespace=check-nodes"}
	says := func(want string, more ...string) {
		t.Helper()
		p.says("nodes", want+cordoned, slices.Concat(args, more)...)
		w.noJobs()
	}
	if is := p.lines("nodes"); is != "" {
		t.Errorf("without --nodes: lines\n%s", is)
	}
	says(`
[fail] nodes: no pod could run the test within 1s
       the Job controller has created no pod: worker-a, worker-b
       do: fix the errors (see kubectl describe node), or allow more time with --nodes-timeout
`, "--nodes-timeout=1s")
	stop := w.say(map[string]corev1.ContainerState{
		"worker-a": ended(1, "table inet sonde {\n}\nsonde-dp: install: transparent-proxy: no such file or directory: the kernel lacks redirection in nftables (CONFIG_NFT_REDIR)\n"),
		"worker-b": {Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: `failed to pull and unpack image "docker.io/library/sonde:1": not found`}},
	})
	says(`
[fail] nodes: redirection fails: injected pods would not start on these nodes
       sonde-dp: install: transparent-proxy: no such file or directory: the kernel lacks redirection in nftables (CONFIG_NFT_REDIR): worker-a
       do: fix the errors on these nodes, or keep injected pods away from them
[fail] nodes: image sonde:1 cannot be pulled: injected pods would not start on these nodes
       failed to pull and unpack image "docker.io/library/sonde:1": not found: worker-b
       do: make sure that the nodes reach the registry, and that service account default of namespace check-nodes has its imagePullSecrets; --nodes-image sets another image
`)
	stop()
	stop = w.say(map[string]corev1.ContainerState{"worker-a": ended(0, ""), "worker-b": {Running: &corev1.ContainerStateRunning{}}})
	says(`
[fail] nodes: no pod could run the test within 3s
       its container has not ended: worker-b
       do: fix the errors (see kubectl describe node), or allow more time with --nodes-timeout
[ok]   nodes: 1 node can redirect: nftables, kernel 6.1
`, "--nodes-timeout=3s")
	stop()
	stop = w.say(map[string]corev1.ContainerState{"worker-a": ended(0, ""), "worker-b": ended(0, "")})
	says("\n[ok]   nodes: 2 nodes can redirect: nftables, kernel 6.1 to 6.8\n")
	p.says("errored probes", "[ok]   errored probes: the kubelets of 2 nodes discard errored liveness probes\n", args...)
	stop()
	w.asked = ended(1, "sonde-dp: "+mesh.KubeletCountsErrored+": the container was ended after 1 errored probes\n")
	stop = w.say(map[string]corev1.ContainerState{"worker-a": ended(0, ""), "worker-b": ended(0, "")})
	defer stop()
	p.says("errored probes", `
[fail] errored probes: the kubelet counts errored liveness probes as failures: guarded liveness does not limit restarts there
       worker-a
       worker-b
       do: helm upgrade with --set config.guardedLiveness.hold=warning: takes effect within two minutes, without restarting pods (docs/guarded-liveness.md)
`, args...)
	w.noJobs()
}

// Pod Security of the namespace rejects the redirecting pod: the check shows its error. Later, Pod
// Security allows the pod.
func TestCheckNodesPodSecurity(t *testing.T) {
	client := newClient(t)
	w := newWorkers(t, client, "check-nodes-strict")
	p := administrator(t)
	label := func(level string) {
		t.Helper()
		ns, err := client.CoreV1().Namespaces().Get(t.Context(), w.namespace, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ns.Labels["pod-security.kubernetes.io/enforce"] = level
		if _, err := client.CoreV1().Namespaces().Update(t.Context(), ns, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"--nodes", "--nodes-image=sonde:1", "--nodes-namespace=" + w.namespace}
	label("restricted")
	p.says("nodes", `
[fail] nodes: cannot create a pod that redirects connections in namespace check-nodes-strict: pods "sondectl-check" is forbidden: violates PodSecurity "restricted:latest": unrestricted capabilities (container "kuma-init" must not include "NET_ADMIN" in securityContext.capabilities.add), runAsNonRoot != true (container "kuma-init" must not set securityContext.runAsNonRoot=false), runAsUser=0 (container "kuma-init" must not set runAsUser=0)
       do: set --nodes-namespace to a namespace for pods of the mesh: its Pod Security must allow NET_ADMIN (pod-security.kubernetes.io/enforce: privileged)
`+cordoned, args...)
	w.noJobs()
	defer w.say(map[string]corev1.ContainerState{"worker-a": ended(0, ""), "worker-b": ended(0, "")})()
	label("privileged")
	p.says("nodes", "[ok]   nodes: 2 nodes can redirect: nftables, kernel 6.1 to 6.8\n"+cordoned, args...)
	p.says("nodes", `
[fail] nodes: cannot create a pod that redirects connections in namespace nowhere: namespaces "nowhere" not found
       do: set --nodes-namespace to a namespace for pods of the mesh: its Pod Security must allow NET_ADMIN (pod-security.kubernetes.io/enforce: privileged)
`+cordoned, "--nodes", "--nodes-image=sonde:1", "--nodes-namespace=nowhere")
}

// A user without the rights creates no Job. A user who loses the rights gets a list of the Jobs
// that are left.
func TestCheckNodesRights(t *testing.T) {
	client := newClient(t)
	w := newWorkers(t, client, "check-nodes-rights")
	p := newPerson(t, client, "check-nodes-user", w.namespace)
	roles := client.RbacV1()
	grant := func(name string, rules ...rbacv1.PolicyRule) {
		t.Helper()
		if _, err := roles.Roles(w.namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err := roles.RoleBindings(w.namespace).Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "check-nodes-user", Name: "default"}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"--nodes", "--nodes-image=sonde:1", "--nodes-timeout=5s", "--nodes-namespace=" + w.namespace}
	p.says("nodes", `
[warn] nodes: not checked: list nodes: nodes is forbidden: User "system:serviceaccount:check-nodes-user:default" cannot list resource "nodes" in API group "" at the cluster scope
       do: get the right, or ask a user who has it to check
`, args...)
	_, err := roles.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "check-nodes"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bind(t, client, "check-nodes", "check-nodes", "check-nodes-user", "default")
	p.says("nodes", `
[warn] nodes: not checked: jobs.batch "sondectl-check" is forbidden: you lack in namespace check-nodes-rights: create jobs.batch, delete jobs.batch, create pods
       do: get the right, or ask a user who has it to check
`, args...)
	w.noJobs()
	grant("try-jobs", rbacv1.PolicyRule{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"create", "delete"}})
	grant("try-pods", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"create"}})
	stop := w.say(map[string]corev1.ContainerState{"worker-a": ended(0, ""), "worker-b": ended(0, "")})
	p.says("nodes", "[ok]   nodes: 2 nodes can redirect: nftables, kernel 6.1 to 6.8\n"+cordoned, args...)
	stop()

	lost := make(chan error, 1)
	go func() {
		lost <- errors.Join(w.awaitJobs(2), roles.RoleBindings(w.namespace).Delete(t.Context(), "try-jobs", metav1.DeleteOptions{}))
	}()
	is := regexp.MustCompile(`sondectl-check-[a-z2-7]{8}`).ReplaceAllString(p.lines("nodes", append(args, "--nodes-timeout=10s")...), "sondectl-check-RUN")
	if err := <-lost; err != nil {
		t.Fatal(err)
	}
	forbidden := func(job string) string {
		return fmt.Sprintf(`       %s: delete it: jobs.batch %q is forbidden: User "system:serviceaccount:check-nodes-user:default" cannot delete resource "jobs" in API group "batch" in the namespace "check-nodes-rights"`+"\n", job, job)
	}
	want := `[fail] nodes: no pod could run the test within 10s
       the Job controller has created no pod: worker-a, worker-b
       do: fix the errors (see kubectl describe node), or allow more time with --nodes-timeout
` + cordoned + `[warn] nodes: Jobs could not be deleted: Kubernetes deletes them 1m0s after they end
` + forbidden("sondectl-check-RUN-0") + forbidden("sondectl-check-RUN-1") + `       do: kubectl -n check-nodes-rights delete jobs -l app.kubernetes.io/name=sondectl-check
`
	if is != want {
		t.Errorf("lines\n%s\nwant\n%s", is, want)
	}
	if err := client.BatchV1().Jobs(w.namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=sondectl-check"}); err != nil {
		t.Fatal(err)
	}
}

// On a signal, the check deletes its Jobs.
func TestCheckNodesInterrupted(t *testing.T) {
	client := newClient(t)
	w := newWorkers(t, client, "check-nodes-signal")
	p := administrator(t)
	cmd := p.command("check", "--nodes", "--nodes-image=sonde:1", "--nodes-namespace="+w.namespace)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := w.awaitJobs(2); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	const want = "sondectl: check: interrupt signal received: the Jobs on nodes were deleted\n"
	if cmd.ProcessState.ExitCode() != 1 || errOut.String() != want || out.String() != "" {
		t.Errorf("exit code %d, stdout %q, stderr %q, want %q", cmd.ProcessState.ExitCode(), out.String(), errOut.String(), want)
	}
	w.noJobs()
}

package fidelity_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/fidelity/cases"
	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
	"github.com/sonde-mesh/sonde/test/harness"
)

// asker is a kubelet: see kubelet.Kubelet.
type asker interface {
	Probe(ctx context.Context, pod *corev1.Pod, container corev1.Container, kind string) (verdict, event string)
	Hook(ctx context.Context, pod *corev1.Pod, container corev1.Container, kind string) (verdict, event, message string)
	Close()
}

// kubelets makes kubelets of a minor version: where the test runs, and on the node of a kernel.
type kubelets struct {
	minor        int
	here, onNode func() asker
}

// inProcess makes kubelets from the code that is built into the tests.
var inProcess = kubelets{minor: minorOf(cases.KubeletVersion), here: newInProcess, onNode: newInProcess}

func newInProcess() asker { return kubelet.New() }

// minorOf returns 37 for 1.37.
func minorOf(version string) int {
	_, minor, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(minor)
	if err != nil {
		panic("parse the minor version of " + version + ": " + err.Error())
	}
	return n
}

// TestKubelets runs all cases as the kubelet of each version in kubelets asks, with the libraries that it was released
// with.
//
//	SONDE_TEST_SEEDS=1 go test ./fidelity -run TestKubelets/1.36 -case 'part of a name'
func TestKubelets(t *testing.T) {
	slowtest.Nightly(t, "the kubelet of each version is built, and asks all cases")
	files, err := filepath.Glob("kubelets/*.mod")
	if err != nil || len(files) == 0 {
		t.Fatalf("found no kubelets to build: %v", err)
	}
	for i, file := range files {
		version := strings.ReplaceAll(strings.TrimPrefix(strings.TrimSuffix(filepath.Base(file), ".mod"), "v"), "_", ".")
		t.Run(version, func(t *testing.T) {
			program, err := harness.BuildKubelet(t.Context(), version)
			if err != nil {
				t.Fatal(err)
			}
			groups := cases.Groups()
			results := runAll(t, groups, 10+i, func(k *kernel) kubelets {
				of := kubelets{minor: minorOf(version), here: startKubelets(t, program, func(start func() error) error { return start() })}
				if k != nil {
					of.onNode = startKubelets(t, program, k.node.Do)
				}
				checkVersion(t, of, version)
				return of
			})
			for _, group := range groups {
				for i := range group.Cases {
					if r := results[&group.Cases[i]]; r != nil {
						t.Run(group.Cases[i].Name, r.report)
					}
				}
			}
		})
	}
}

// checkVersion checks that a kubelet sends its version to applications. Agents use it to select the behaviour.
func checkVersion(t *testing.T, of kubelets, version string) {
	t.Helper()
	var agents []string // needs no lock: the kubelet asks one after the other
	application := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { agents = append(agents, r.UserAgent()) }))
	defer application.Close()
	ip, port, _ := strings.Cut(application.Listener.Addr().String(), ":")
	get := &corev1.HTTPGetAction{Port: intstr.Parse(port)}
	pod := &corev1.Pod{Status: corev1.PodStatus{PodIP: ip}}
	container := corev1.Container{
		Name: "app", LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: get}, TimeoutSeconds: 30},
		Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{HTTPGet: get}},
	}
	k := of.here()
	defer k.Close()
	_, event := k.Probe(t.Context(), pod, container, "liveness")
	_, _, message := k.Hook(t.Context(), pod, container, "preStop")
	if want := []string{"kube-probe/" + version, "kube-lifecycle/" + version}; !slices.Equal(agents, want) {
		t.Fatalf("user agents of the kubelet: %q, want %q: %s %s", agents, want, event, message)
	}
}

// startKubelets starts a program of fidelity/kubelet/program and returns a function that makes kubelets in it. start
// calls a function where the program must run.
func startKubelets(t *testing.T, program string, start func(func() error) error) func() asker {
	t.Helper()
	cmd := exec.Command(program) // it ends when its input ends
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := start(cmd.Start); err != nil {
		t.Fatal(err)
	}
	client := jsonrpc.NewClient(struct {
		io.Reader
		io.WriteCloser
	}{out, in})
	t.Cleanup(func() {
		_ = client.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", program, err)
		}
	})
	var last atomic.Int64
	return func() asker { return &remote{client, int(last.Add(1))} }
}

// remote is a kubelet in another program.
type remote struct {
	client *rpc.Client
	number int
}

// Probe asks as kubelet.Kubelet does. There is no verdict if the program fails.
func (r *remote) Probe(_ context.Context, pod *corev1.Pod, container corev1.Container, kind string) (verdict, event string) {
	verdict, event, _ = r.call("Kubelets.Probe", pod, container, kind)
	return verdict, event
}

// Hook calls a hook as kubelet.Kubelet does.
func (r *remote) Hook(_ context.Context, pod *corev1.Pod, container corev1.Container, kind string) (verdict, event, message string) {
	return r.call("Kubelets.Hook", pod, container, kind)
}

func (r *remote) call(method string, pod *corev1.Pod, container corev1.Container, kind string) (verdict, event, message string) {
	// The same as program.Request and program.Answer.
	request := struct {
		Kubelet   int
		Pod       *corev1.Pod
		Container corev1.Container
		Kind      string
	}{r.number, pod, container, kind}
	var answer struct{ Verdict, Event, Message string }
	if err := r.client.Call(method, request, &answer); err != nil {
		return "", fmt.Sprint("the kubelet's program: ", err), err.Error()
	}
	return answer.Verdict, answer.Event, answer.Message
}

// Close closes the connections that hooks left open.
func (r *remote) Close() { _ = r.client.Call("Kubelets.Close", r.number, new(bool)) } // errors were reported

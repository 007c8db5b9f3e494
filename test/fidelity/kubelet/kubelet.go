// Package kubelet runs the kubelet's own code for probes and hooks (v1.37.2), and nothing that was written after it: what
// it returns is what a node would do.
package kubelet

import (
	"context"
	"crypto/tls"
	"net/http"
	"strings"
	"sync"
	_ "unsafe" // for go:linkname

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/featuregate"
	_ "k8s.io/component-base/version" // whose variables are set here, as the linker does for a release
	"k8s.io/kubernetes/pkg/features"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	_ "k8s.io/kubernetes/pkg/kubelet/prober"
	"k8s.io/kubernetes/pkg/kubelet/prober/results"
	httpprobe "k8s.io/kubernetes/pkg/probe/http"

	"github.com/sonde-mesh/sonde/test/fidelity/cases"
)

// The kubelet's version and its prober are not exported. A change of their form in another version of Kubernetes must be
// followed here; TestVerdicts fails if it is not.
//
//go:linkname gitMajor k8s.io/component-base/version.gitMajor
var gitMajor string

//go:linkname gitMinor k8s.io/component-base/version.gitMinor
var gitMinor string

// prober stands for pkg/kubelet/prober.prober, of which only pointers are passed.
type prober struct{ _ [0]byte }

//go:linkname newProber k8s.io/kubernetes/pkg/kubelet/prober.newProber
func newProber(kubecontainer.CommandRunner, record.EventRecorderLogger) *prober

//nolint:revive // the receiver comes first
//go:linkname runProber k8s.io/kubernetes/pkg/kubelet/prober.(*prober).probe
func runProber(*prober, context.Context, probeType, *corev1.Pod, corev1.PodStatus, corev1.Container, kubecontainer.ContainerID) (results.Result, error)

// probeType is pkg/kubelet/prober.probeType.
type probeType int

const (
	liveness probeType = iota
	readiness
	startup
)

// setVersion sets what the user agent shows, and has the kubelet read fields that are alpha, once.
var setVersion = sync.OnceFunc(func() {
	gitMajor, gitMinor, _ = strings.Cut(cases.KubeletVersion, ".")
	for _, gate := range []featuregate.Feature{features.H2CContainerProbe, features.GRPCContainerProbeTLS} {
		if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{string(gate): true}); err != nil {
			panic(err) // of this version of Kubernetes
		}
	}
})

// Kubelet asks as one does. Close it.
type Kubelet struct {
	hooks *http.Client
}

// New returns a kubelet that has no connections yet.
func New() *Kubelet {
	setVersion()
	return &Kubelet{
		// As NewMainKubelet makes it (pkg/kubelet/kubelet.go, insecureContainerLifecycleHTTPClient).
		hooks: &http.Client{
			Transport:     &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
			CheckRedirect: httpprobe.RedirectChecker(false),
		},
	}
}

// Close ends the connections that hooks kept.
func (k *Kubelet) Close() { k.hooks.CloseIdleConnections() }

// noEvent stands for the text of an event if there is none.
const noEvent = "no event"

// Probe asks one probe of a container once, as pkg/kubelet/prober does in each period, and returns the verdict and the text
// of the event that the kubelet would write.
func (k *Kubelet) Probe(ctx context.Context, pod *corev1.Pod, container corev1.Container, kind string) (cases.Verdict, string) {
	pod = pod.DeepCopy()
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"} // events need it
	kinds := map[string]probeType{"liveness": liveness, "readiness": readiness, "startup": startup}
	recorder := record.NewFakeRecorder(10)
	id := kubecontainer.ContainerID{Type: "test", ID: container.Name}
	result, err := runProber(newProber(nil, recorder), ctx, kinds[kind], pod, pod.Status, container, id)
	event := noEvent
	select {
	case event = <-recorder.Events:
	default:
	}
	switch {
	case err != nil:
		return cases.Errored, event
	case result != results.Success:
		return cases.Failure, event
	case strings.Contains(event, "ProbeWarning"):
		return cases.Warning, event
	}
	return cases.Success, event
}

// Hook calls a hook as pkg/kubelet/lifecycle does, and returns the text of the event that the kubelet would write, and its message, which for
// postStart is in the status of the container.
func (k *Kubelet) Hook(ctx context.Context, pod *corev1.Pod, container corev1.Container, kind string) (v cases.Verdict, event, message string) {
	recorder := record.NewFakeRecorder(10)
	runner := lifecycle.NewHandlerRunner(k.hooks, nil, podIP(pod.Status.PodIP), recorder)
	id := kubecontainer.ContainerID{Type: "test", ID: container.Name}
	message, err := runner.Run(ctx, id, pod, &container, cases.HookOf(&container, kind))
	if err != nil {
		// Source: pkg/kubelet/kuberuntime/kuberuntime_container.go.
		failed := map[string]string{"postStart": "Warning FailedPostStartHook PostStartHook failed", "preStop": "Warning FailedPreStopHook PreStopHook failed"}
		return cases.Failure, failed[kind], message
	}
	event = noEvent
	select {
	case event = <-recorder.Events:
	default:
	}
	return cases.Success, event, message
}

// podIP tells the kubelet's lifecycle code where the pod is.
type podIP string

// GetPod finds every pod.
func (podIP) GetPod(_ context.Context, uid types.UID) (*kubecontainer.Pod, error) {
	return &kubecontainer.Pod{ID: uid}, nil
}

// GetPodStatus gives every pod the one address.
func (ip podIP) GetPodStatus(_ context.Context, pod *kubecontainer.Pod) (*kubecontainer.PodStatus, error) {
	return &kubecontainer.PodStatus{ID: pod.ID, IPs: []string{string(ip)}}, nil
}

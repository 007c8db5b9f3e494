// Package kubelet runs the kubelet's own code for probes and hooks, and nothing else: it returns what a node would do.
// In the tests it is the newest release's code. Package program builds it into a program for each other version.
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
	_ "k8s.io/component-base/version" // its variables are set here, as the linker sets them in a release
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	_ "k8s.io/kubernetes/pkg/kubelet/prober"
	"k8s.io/kubernetes/pkg/kubelet/prober/results"
	httpprobe "k8s.io/kubernetes/pkg/probe/http"
)

// The kubelet's version and its prober are not exported. If their form changes in another version of Kubernetes, this
// file must change too; TestVerdicts fails otherwise.
//
//go:linkname gitMajor k8s.io/component-base/version.gitMajor
var gitMajor string

//go:linkname gitMinor k8s.io/component-base/version.gitMinor
var gitMinor string

// prober stands for pkg/kubelet/prober.prober. Only pointers to it are passed.
type prober struct{ _ [0]byte }

//go:linkname newProber k8s.io/kubernetes/pkg/kubelet/prober.newProber
func newProber(kubecontainer.CommandRunner, proberRecorder) *prober

//nolint:revive // the receiver comes first
//go:linkname runProber k8s.io/kubernetes/pkg/kubelet/prober.(*prober).probe
func runProber(
	*prober, context.Context, probeType, *corev1.Pod, corev1.PodStatus, corev1.Container, kubecontainer.ContainerID,
) (results.Result, error)

// probeType is pkg/kubelet/prober.probeType.
type probeType int

const (
	liveness probeType = iota
	readiness
	startup
)

// alpha are the gates of fields that the kubelet would otherwise ignore, if its version has them.
var alpha = []string{"H2CContainerProbe", "GRPCContainerProbeTLS"}

// setUp sets the version in the user agent and enables the alpha fields, once.
var setUp = sync.OnceFunc(func() {
	gitMajor, gitMinor, _ = strings.Cut(Version, ".")
	known := utilfeature.DefaultMutableFeatureGate.GetAll()
	for _, gate := range alpha {
		if _, ok := known[featuregate.Feature(gate)]; !ok {
			continue
		}
		if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{gate: true}); err != nil {
			panic(err) // the gate exists
		}
	}
})

// Version is the version of the kubelet's code as in its user agent: in the tests, the newest release's. A program with
// another version sets it first.
var Version = "1.37"

// Kubelet probes as a kubelet does. It must be closed.
type Kubelet struct {
	// Commands runs the commands of exec probes. Default: none can be asked.
	Commands kubecontainer.CommandRunner

	hooks *http.Client
}

// New returns a kubelet without connections.
func New() *Kubelet {
	setUp()
	return &Kubelet{
		// The same as in NewMainKubelet (pkg/kubelet/kubelet.go, insecureContainerLifecycleHTTPClient).
		hooks: &http.Client{
			Transport:     &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
			CheckRedirect: httpprobe.RedirectChecker(false),
		},
	}
}

// Close closes the connections that hooks left open.
func (k *Kubelet) Close() { k.hooks.CloseIdleConnections() }

// The verdicts of a probe, with the names of package cases; a hook has only Success and Failure.
const (
	success = "Success"
	warning = "Warning"
	failure = "Failure"
	errored = "Errored"
)

// noEvent stands for a missing event.
const noEvent = "no event"

// Probe asks one probe of a container once, as pkg/kubelet/prober does in each period. It returns the verdict and the
// text of the event that the kubelet would write.
func (k *Kubelet) Probe(
	ctx context.Context, pod *corev1.Pod, container corev1.Container, kind string,
) (verdict, event string) {
	kinds := map[string]probeType{"liveness": liveness, "readiness": readiness, "startup": startup}
	result, event, err := k.ask(ctx, pod, container, kinds[kind])
	switch {
	case err != nil:
		return errored, event
	case result != results.Success:
		return failure, event
	case strings.Contains(event, "ProbeWarning"):
		return warning, event
	}
	return success, event
}

// ask returns what the prober returns, and the text of its event.
func (k *Kubelet) ask(
	ctx context.Context, pod *corev1.Pod, container corev1.Container, kind probeType,
) (results.Result, string, error) {
	pod = pod.DeepCopy()
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"} // required for events
	recorder := record.NewFakeRecorder(10)
	id := kubecontainer.ContainerID{Type: "test", ID: container.Name}
	result, err := runProber(newProber(k.Commands, recorder), ctx, kind, pod, pod.Status, container, id)
	event := noEvent
	select {
	case event = <-recorder.Events:
	default:
	}
	return result, event, err
}

// Hook calls a container's hook, postStart or preStop, as pkg/kubelet/lifecycle does. It returns the text of the event
// that the kubelet would write and its message. For postStart the message is in the status of the container.
func (k *Kubelet) Hook(
	ctx context.Context, pod *corev1.Pod, container corev1.Container, kind string,
) (verdict, event, message string) {
	recorder := record.NewFakeRecorder(10)
	runner := lifecycle.NewHandlerRunner(k.hooks, nil, podIP(pod.Status.PodIP), recorder)
	id := kubecontainer.ContainerID{Type: "test", ID: container.Name}
	hook := container.Lifecycle.PreStop
	if kind == "postStart" {
		hook = container.Lifecycle.PostStart
	}
	message, err := runner.Run(ctx, id, pod, &container, hook)
	if err != nil {
		// Source: pkg/kubelet/kuberuntime/kuberuntime_container.go.
		failed := map[string]string{
			"postStart": "Warning FailedPostStartHook PostStartHook failed",
			"preStop":   "Warning FailedPreStopHook PreStopHook failed",
		}
		return failure, failed[kind], message
	}
	event = noEvent
	select {
	case event = <-recorder.Events:
	default:
	}
	return success, event, message
}

// podIP tells the kubelet's lifecycle code the pod's address.
type podIP string

func (ip podIP) status(uid types.UID) *kubecontainer.PodStatus {
	return &kubecontainer.PodStatus{ID: uid, IPs: []string{string(ip)}}
}

// Counted asks a liveness probe once, and returns whether a kubelet counts the answer as a failure: this one, and one
// with the gate ProbeErrorAsFailure (kubernetes#139872). The gate makes the kubelet use the result of an errored probe,
// which pkg/kubelet/prober/worker.go otherwise discards.
func (k *Kubelet) Counted(ctx context.Context, pod *corev1.Pod, container corev1.Container) (counts, withGate bool) {
	result, _, err := k.ask(ctx, pod, container, liveness)
	failed := result == results.Failure
	return failed && err == nil, failed
}

// Package pods decides which pods of a node need redirection, and maintains the rules in their network namespaces.
package pods

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cni/wire"
	"github.com/sonde-mesh/sonde/dpagent/redirect"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// Record has the stored fields of a pod on the node.
type Record struct {
	UID string
	// Redirection is the value that the webhook wrote, truncated if it is too long; "" for a pod that the plugin does not
	// redirect, or that has ended and no longer has a network.
	Redirection string
	// Static means that it is the mirror pod of a static pod, which has another UID.
	Static bool
}

// Read returns the record of a pod. Every pod gets a record, since a missing one causes a request to the API server.
func Read(pod *corev1.Pod) (Record, bool) {
	r := Record{UID: string(pod.UID)}
	_, r.Static = pod.Annotations[corev1.MirrorPodAnnotationKey]
	if !r.Static && !podspec.Ended(pod) && podspec.Unsupported(&pod.Spec) == "" {
		text, _ := podspec.RedirectionText(&pod.Spec)
		// The author of a pod chooses the text. One byte above the bound keeps it invalid.
		r.Redirection = strings.Clone(text[:min(len(text), mesh.MaxRedirectionBytes+1)])
	}
	return r, true
}

// Key names a pod.
type Key struct{ Namespace, Name string }

// Source has the pods of the node.
type Source interface {
	// Pods returns the known pods, false before the first complete list.
	Pods() (map[Key]Record, bool)
	// Pod returns a known pod, false for an unknown one.
	Pod(Key) (Record, bool)
	// Ask reads a pod from the API server. It returns false for a pod that does not exist.
	Ask(context.Context, Key) (Record, bool, error)
}

// Kernel reads and writes rules in the network namespace at a path.
type Kernel interface {
	Install(path string, o redirect.Options) error
	// Check returns the differences of the rules. The error wraps fs.ErrNotExist if the namespace no longer exists.
	Check(path string, o redirect.Options) (differences []string, err error)
}

// Sandbox is the network namespace of a pod, as recorded by the container runtime.
type Sandbox struct {
	Key
	UID         string // "" if the runtime does not report it
	ContainerID string
	NetNS       string // "" if the runtime does not record it
}

// Redirector maintains the rules of a node's pods.
type Redirector struct {
	Source Source
	Kernel Kernel
	// Sandboxes returns the network namespaces of the node's pods.
	Sandboxes func() ([]Sandbox, error)
	Logger    *slog.Logger
	Metrics   *Metrics

	mu sync.Mutex
	// verified has the time of the last successful check of each network namespace.
	verified map[string]time.Time
	// added has the time of each successful ADD, by container ID.
	added map[string]time.Time
	// reported has the logged error of each broken pod. Only Repair uses it.
	reported map[Key]string
}

// recheckAfter is how long a successful check is valid: the kernel needs about a millisecond per pod for a check.
const recheckAfter = 2 * time.Minute

// maxReason bounds an error in the log, in bytes: it may quote what the author of a pod wrote.
const maxReason = 1 << 10

func reasonOf(err error) string { return mesh.Shorten(err.Error(), maxReason) }

// Handle answers the plugin. It returns errors only for pods of the mesh: an error fails the sandbox, and the kubelet
// shows it in an event.
func (r *Redirector) Handle(ctx context.Context, request wire.Request) error {
	log := r.Logger.With("pod", request.Namespace+"/"+request.Pod, "container", request.ContainerID)
	record, err := r.find(ctx, request)
	if err != nil {
		// A sidecar does not pass its startup probe before Repair has written the rules.
		log.Warn("failed to read a pod, letting it start", "err", err)
		r.Metrics.answered(resultUnknown)
		return nil
	}
	if record.Redirection == "" {
		r.Metrics.answered(resultNotInMesh)
		return nil
	}
	if err := r.apply(request, record); err != nil {
		log.Error("failed to redirect a pod", "verb", request.Verb, "err", reasonOf(err))
		r.Metrics.answered(resultFailed)
		return fmt.Errorf("redirect connections of the pod to its sidecar: %w", err)
	}
	r.Metrics.answered(resultRedirected)
	return nil
}

func (r *Redirector) apply(request wire.Request, record Record) error {
	o, err := optionsOf(record)
	if err != nil {
		return err
	}
	switch request.Verb {
	case wire.Add:
		err := r.Kernel.Install(request.NetNS, o)
		if err == nil {
			r.verify(request.NetNS)
			r.noteAdded(request.ContainerID)
		}
		return err
	case wire.Check:
		differences, err := r.Kernel.Check(request.NetNS, o)
		if err == nil && len(differences) > 0 {
			err = fmt.Errorf("%d rules differ: %s", len(differences), mesh.Few(differences))
		}
		return err
	}
	return fmt.Errorf("verb %q: must be %s or %s", request.Verb, wire.Add, wire.Check)
}

func (r *Redirector) verify(netns string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.verified == nil {
		r.verified = map[string]time.Time{}
	}
	r.verified[netns] = time.Now()
}

func (r *Redirector) isVerified(netns string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.verified[netns]
	return ok && time.Since(at) < recheckAfter
}

func (r *Redirector) noteAdded(container string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.added == nil {
		r.added = map[string]time.Time{}
	}
	r.added[container] = time.Now()
}

func (r *Redirector) isAdded(container string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.added[container]
	return ok
}

// forget drops network namespaces without a recent check, and containers that are not in sandboxes: they no longer
// exist. The runtime records a sandbox only after its ADD.
func (r *Redirector) forget(sandboxes []Sandbox) {
	recorded := map[string]bool{}
	for _, s := range sandboxes {
		recorded[s.ContainerID] = true
	}
	isOld := func(at time.Time) bool { return time.Since(at) > 2*recheckAfter }
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.verified, func(_ string, at time.Time) bool { return isOld(at) })
	maps.DeleteFunc(r.added, func(id string, at time.Time) bool { return isOld(at) && !recorded[id] })
}

var errNotFound = errors.New("the API server does not have this pod")

// find returns the record of a sandbox's pod. A recreated pod has the same name but another UID.
func (r *Redirector) find(ctx context.Context, request wire.Request) (Record, error) {
	key := Key{Namespace: request.Namespace, Name: request.Pod}
	isSame := func(record Record) bool { return request.UID == "" || record.UID == request.UID || record.Static }
	if record, ok := r.Source.Pod(key); ok && isSame(record) {
		return record, nil
	}
	record, ok, err := r.Source.Ask(ctx, key)
	switch {
	case err != nil:
		return Record{}, err
	case !ok:
		return Record{}, errNotFound
	case !isSame(record):
		return Record{}, fmt.Errorf("the API server has a pod with this name and UID %s, the sandbox is for UID %s", record.UID, request.UID)
	}
	return record, nil
}

func optionsOf(record Record) (redirect.Options, error) {
	r, err := mesh.ParseRedirection(record.Redirection)
	if err != nil {
		return redirect.Options{}, fmt.Errorf("%s of %s: %w", mesh.EnvRedirection, mesh.ContainerSidecar, err)
	}
	return redirect.Of(&r), nil
}

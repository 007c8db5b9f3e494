package watchdog

import (
	"context"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/partition"
	"github.com/sonde-mesh/sonde/watchdog/cluster"
	"github.com/sonde-mesh/sonde/watchdog/kubeconfig"
	"github.com/sonde-mesh/sonde/watchdog/probe"
)

// target has the connection settings of a cluster. Each probe reads the Secret, which may be rotated at any time.
type target struct {
	w                 *Watchdog
	namespace, secret string // "" for the local cluster
	event             func(cluster.Event)
	told              atomic.Pointer[string] // last external address reported by an event
}

// open begins a probe.
func (t *target) open(ctx context.Context) (cluster.Source, error) {
	if t.secret == "" {
		return asSource(probe.New(t.w.config, t.w.budget))
	}
	kept, err := t.w.client.CoreV1().Secrets(t.namespace).Get(ctx, t.secret, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, t.refuse(&mesh.FieldError{Field: "spec.kubeconfigSecretName", Value: t.secret,
			Allowed: "must be an existing Secret"})
	case err != nil:
		return nil, t.refuse(probe.Explain("read Secret with the kubeconfig", err))
	}
	data, ok := kept.Data[kubeconfig.Key]
	if !ok {
		return nil, t.refuse(&mesh.FieldError{Field: "Secret " + t.secret, Allowed: "must have the key " + kubeconfig.Key})
	}
	to, err := kubeconfig.Parse(data)
	if err != nil {
		return nil, t.refuse(err)
	}
	if last := t.told.Swap(&to.External); to.External != "" && (last == nil || *last != to.External) {
		t.event(cluster.Event{
			Reason: "ExternalAddress", Action: "Probe",
			Note: to.External + " seems to be outside this cluster: if the path to it breaks, the API server counts as unreachable and nothing is scaled",
		})
	}
	return asSource(probe.New(to.Config, t.w.budget))
}

// asSource avoids a non-nil Source with a nil probe.
func asSource(p *probe.Probe, err error) (cluster.Source, error) {
	if err != nil {
		return nil, err
	}
	return p, nil
}

// refuse returns an error about the connection settings: the API server itself may be reachable.
func (t *target) refuse(err error) error {
	return &probe.Error{Cause: partition.Unreadable, Err: err}
}

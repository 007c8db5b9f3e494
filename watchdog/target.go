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

// target is how a cluster is reached. Its Secret is read for each probe: it may be rotated at any time.
type target struct {
	w                 *Watchdog
	namespace, secret string // "" for the local cluster
	event             func(cluster.Event)
	told              atomic.Pointer[string] // the external address that an event was about
}

// open begins a probe.
func (t *target) open(ctx context.Context) (cluster.Source, error) {
	if t.secret == "" {
		return asSource(probe.New(t.w.config, t.w.budget))
	}
	kept, err := t.w.client.CoreV1().Secrets(t.namespace).Get(ctx, t.secret, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, t.refuse(&mesh.FieldError{Field: "spec.kubeconfigSecretName", Value: t.secret, Allowed: "must be a Secret that is there"})
	case err != nil:
		return nil, t.refuse(probe.Explain("read the Secret with the kubeconfig", err))
	}
	data, has := kept.Data[kubeconfig.Key]
	if !has {
		return nil, t.refuse(&mesh.FieldError{Field: "Secret " + t.secret, Allowed: "must have the key " + kubeconfig.Key})
	}
	to, err := kubeconfig.Parse(data)
	if err != nil {
		return nil, t.refuse(err)
	}
	if last := t.told.Swap(&to.External); to.External != "" && (last == nil || *last != to.External) {
		t.event(cluster.Event{
			Reason: "ExternalAddress", Action: "Probe",
			Note: to.External + " seems to be outside of this cluster: where the path to it breaks, the API server counts as away, and nothing is scaled",
		})
	}
	return asSource(probe.New(to.Config, t.w.budget))
}

// asSource returns nil as a Source beside an error.
func asSource(p *probe.Probe, err error) (cluster.Source, error) {
	if err != nil {
		return nil, err
	}
	return p, nil
}

// refuse returns an error about what says how to reach the cluster: its API server may be there.
func (t *target) refuse(err error) error {
	return &probe.Error{Cause: partition.Unreadable, Err: err}
}

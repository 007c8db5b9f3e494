package controlplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/source"
	"github.com/sonde-mesh/sonde/controller/uninjected"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/webhook"
)

// injection returns the options of the injection.
func (c *cluster) injection() *webhook.Options {
	o := c.cp.o.Kubernetes.Injection
	o.ControlPlaneNamespace = c.cp.o.Kubernetes.Namespace
	return &o
}

// whyNotInjected returns why a pod has no sidecar.
func (c *cluster) whyNotInjected(p *corev1.Pod) uninjected.Absence {
	n := c.controller.Cluster.Namespace(p.Namespace)
	if n == nil {
		return uninjected.Absence{}
	}
	a := webhook.WhyNot(&webhook.Namespace{Name: p.Namespace, Labels: n.Labels, Annotations: n.Annotations}, p,
		*c.injection())
	if a.Missing {
		return uninjected.Absence{Missing: a.Why}
	}
	return uninjected.Absence{Warning: a.Warning}
}

// readTimeout bounds reads for the webhook. It is shorter than the webhook's timeoutSeconds.
const readTimeout = time.Second

// readAnew calls read, which reads from the API server for the webhook, within the rate limit of such reads.
func readAnew[T any](ctx context.Context, c *cluster, read func(context.Context) (T, error)) (T, error) {
	if !c.anew.Allow() {
		var none T
		return none, fmt.Errorf("more than %d lookups of unknown names per second", anewPerSecond)
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return read(ctx)
}

// errNotRead means that the cluster has not been read yet.
var errNotRead = errors.New("the control plane has not read the cluster yet")

// namespace returns a namespace. It reads the namespace again if it is unknown or may have changed: after an outage,
// the API server may call the webhook before the watches are open again. If that fails, it uses the last state.
func (c *cluster) namespace(ctx context.Context, name string) (webhook.Namespace, error) {
	n := c.controller.Cluster.Namespace(name)
	if n == nil || c.controller.Cluster.Lost().Err != nil {
		now, err := readAnew(ctx, c, func(ctx context.Context) (*source.Namespace, error) {
			return c.controller.Cluster.ReadNamespace(ctx, name)
		})
		if err != nil && n == nil {
			return webhook.Namespace{}, err
		}
		n = cmp.Or(now, n)
	}
	return webhook.Namespace{Name: name, Labels: n.Labels, Annotations: n.Annotations}, nil
}

// meshes returns the names of all meshes. It reads them again if the wanted one is unknown.
func (c *cluster) meshes(ctx context.Context, wanted string) ([]string, error) {
	names, known := c.controller.Objects.Meshes()
	if !known {
		return nil, errNotRead
	}
	if slices.Contains(names, wanted) {
		return names, nil
	}
	names, err := readAnew(ctx, c, c.controller.Objects.ReadMeshes)
	if err == nil && len(names) == 0 {
		err = errors.New("there is no Mesh yet") // the first one is created after the start
	}
	return names, err
}

// mode returns the mTLS mode of a mesh, "" for an unknown mesh or one without mTLS.
func (c *cluster) mode(meshName string) mesh.MTLSMode {
	v := c.cp.pipeline.Builder.View()
	if v == nil {
		return ""
	}
	m := v.Mesh(meshName)
	if m == nil {
		return ""
	}
	return m.Spec.Mode()
}

// inUse returns how many pods and Dataplane objects belong to a mesh.
func (c *cluster) inUse(meshName string) (int, error) {
	v := c.cp.pipeline.Builder.View()
	if v == nil {
		return 0, errNotRead
	}
	if m := v.Mesh(meshName); m != nil {
		return m.Proxies.Len(), nil
	}
	return 0, nil
}

func (c *cluster) podExists(namespace, name string) (bool, error) {
	if c.controller.Cluster.Missing() != nil {
		return false, errNotRead
	}
	return c.controller.Cluster.PodNamed(watch.Key{Namespace: namespace, Name: name}) != nil, nil
}

// serviceIPs returns the virtual addresses of a Service, empty if it does not exist.
func (c *cluster) serviceIPs(namespace, name string) ([]string, error) {
	if c.controller.Cluster.Missing() != nil {
		return nil, errNotRead
	}
	return c.controller.Cluster.ClusterIPs(watch.Key{Namespace: namespace, Name: name}), nil
}

package webhook

import (
	"errors"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// readResources reads the namespace's resources. The error joins one for each invalid quantity, and for each in the
// pod's annotations that exceeds the pod's own resources for all containers.
func (in *injection) readResources() (err error) {
	var errs []error
	if in.namespace != nil {
		if in.ofNamespace, err = demandsOf("namespace "+in.namespace.Name+": ", in.namespace.Annotations); err != nil {
			errs = append(errs, err)
		}
	}
	for _, r := range computeResources {
		limit, limited := in.limitOfPod(r.name)
		d := in.settings.resources[r.name]
		for _, q := range []*quantity{d.request, d.limit} {
			if q != nil && limited && q.Cmp(limit) > 0 {
				errs = append(errs, &mesh.FieldError{
					Field: q.field, Value: q.text, Allowed: "must be at most the limit in spec.resources, " + limit.String(),
				})
			}
		}
	}
	return errors.Join(errs...)
}

// chooseResources decides about requests and limits of kuma-sidecar. kuma-init has the same: it ends before the others
// start, so the pod needs no more, and a LimitRange that accepts one container accepts the other.
func (in *injection) chooseResources() {
	in.resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	keep := isGuaranteed(&in.pod.Spec) && !in.leavesGuaranteed()
	for _, r := range computeResources {
		// Later ones take precedence.
		places := []demand{in.options.demands[r.name], in.ofNamespace[r.name], in.settings.resources[r.name]}
		switch {
		case isShared(&in.pod.Spec, r.name):
			in.shareResource(r, places[2])
		case keep:
			q := r.equal(places)
			in.setResource(r.name, &q, &q)
		default:
			request, limit := r.choose(places)
			in.setResource(r.name, &request, &limit)
		}
	}
}

// setResource sets the request and, if there is one, the limit.
func (in *injection) setResource(name corev1.ResourceName, request, limit *resource.Quantity) {
	if request != nil {
		in.resources.Requests[name] = request.DeepCopy()
	}
	if limit != nil {
		in.resources.Limits[name] = limit.DeepCopy()
	}
}

// choose returns request and limit. If a source only sets one of them, the other one from an earlier source is
// adjusted: a lower limit is raised to the request, a higher request lowered to the limit.
func (r computeResource) choose(places []demand) (request, limit resource.Quantity) {
	request, limit = r.request.standard, r.limit.standard
	for _, d := range places {
		if d.request != nil {
			request = d.request.Quantity
			limit = larger(limit, request)
		}
		if d.limit != nil {
			limit = d.limit.Quantity
			request = smaller(request, limit)
		}
	}
	return request, limit
}

// equal returns request and limit in a pod of QoS class Guaranteed, where both are the same: the limit of the most
// specific source, otherwise its request, which must be enough for Envoy to start.
func (r computeResource) equal(places []demand) resource.Quantity {
	for _, d := range slices.Backward(places) {
		switch {
		case d.limit != nil:
			return d.limit.Quantity
		case d.request != nil:
			return larger(d.request.Quantity, r.limit.least)
		}
	}
	return r.guaranteed
}

func larger(a, b resource.Quantity) resource.Quantity {
	if a.Cmp(b) < 0 {
		return b
	}
	return a
}

func smaller(a, b resource.Quantity) resource.Quantity {
	if a.Cmp(b) > 0 {
		return b
	}
	return a
}

// isGuaranteed reports whether a pod is of QoS class Guaranteed, once the API server has set missing requests to the
// limits. If the pod has resources of its own, containers do not count. Before Kubernetes 1.37, an empty "resources:
// {}" counts as the pod's own resources, and makes the pod BestEffort.
// Source: kubernetes pkg/apis/core/v1/helper/qos/qos.go, pkg/apis/core/v1/defaults.go (SetDefaults_Pod).
func isGuaranteed(spec *corev1.PodSpec) bool {
	if r := spec.Resources; r != nil && len(r.Requests)+len(r.Limits) > 0 {
		return false
	}
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			if !hasEqualResources(&containers[i].Resources) {
				return false
			}
		}
	}
	return true
}

func hasEqualResources(have *corev1.ResourceRequirements) bool {
	for _, r := range computeResources {
		limit, limited := have.Limits[r.name]
		request, requested := have.Requests[r.name]
		if !limited || limit.Sign() <= 0 || requested && request.Cmp(limit) != 0 {
			return false
		}
	}
	return true
}

// leavesGuaranteed reports whether the pod's own annotations set a request below the limit, with which it loses QoS
// class Guaranteed.
func (in *injection) leavesGuaranteed() bool {
	leaves := false
	for _, r := range computeResources {
		if d := in.settings.resources[r.name]; d.request != nil && d.limit != nil && d.request.Cmp(d.limit.Quantity) != 0 {
			in.warn("%s: %q: less than the limit %s, so this pod loses its QoS class Guaranteed", d.request.field, d.request.text, d.limit.text)
			leaves = true
		}
	}
	return leaves
}

// limitOfPod returns the pod's own limit of a resource for all containers, false if unset.
func (in *injection) limitOfPod(name corev1.ResourceName) (limit resource.Quantity, ok bool) {
	if r := in.pod.Spec.Resources; r != nil {
		limit, ok = r.Limits[name]
	}
	return limit, ok
}

// isShared reports whether the pod itself sets a resource for all its containers.
func isShared(spec *corev1.PodSpec, name corev1.ResourceName) bool {
	if spec.Resources == nil {
		return false
	}
	_, limited := spec.Resources.Limits[name]
	_, requested := spec.Resources.Requests[name]
	return limited || requested
}

// shareResource handles a resource that the pod sets for all its containers: Sonde's containers get only what the pod's
// annotations set, since the API server rejects a container limit above the pod's, and container requests above the
// pod's.
func (in *injection) shareResource(r computeResource, asked demand) {
	if asked == (demand{}) {
		ours := mesh.ContainerInit + " and " + mesh.ContainerSidecar + " have"
		if in.cni {
			ours = mesh.ContainerSidecar + " has"
		}
		in.warn("spec.resources: %s no %s of their own, they share the pod's", ours, r.name)
		return
	}
	in.keepRequest(r.name)
	var request, limit *resource.Quantity
	if asked.limit != nil {
		limit = &asked.limit.Quantity
		least := smaller(r.request.standard, *limit)
		request = &least
	}
	if asked.request != nil {
		request = &asked.request.Quantity
	}
	in.setResource(r.name, request, limit)
}

// keepRequest sets the pod's request of a resource if the pod has only a limit and no container a request. The API
// server's default would be the limit, but once a container has a request, the sum of requests.
// Source: kubernetes pkg/apis/core/v1/defaults.go (defaultPodRequests).
func (in *injection) keepRequest(name corev1.ResourceName) {
	spec := &in.pod.Spec
	limit, limited := spec.Resources.Limits[name]
	_, requested := spec.Resources.Requests[name]
	says := func(c corev1.Container) bool {
		_, limited := c.Resources.Limits[name]
		_, requested := c.Resources.Requests[name]
		return limited || requested
	}
	if !limited || requested || slices.ContainsFunc(spec.InitContainers, says) ||
		slices.ContainsFunc(spec.Containers, says) {
		return
	}
	const path = "/spec/resources/requests"
	if spec.Resources.Requests == nil && !in.patch.has(path) {
		in.patch.add(path, struct{}{})
	}
	in.patch.add(path+"/"+string(name), limit)
}

// cloneResources returns a copy for the second container.
func cloneResources(r *corev1.ResourceRequirements) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: maps.Clone(r.Requests), Limits: maps.Clone(r.Limits)}
}

package webhook

import (
	"errors"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// readResources reads what the namespace asks for. The error joins one for each quantity that is bad, and for each in the pod's annotations that is
// more than the pod has for all its containers.
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
				errs = append(errs, &mesh.FieldError{Field: q.field, Value: q.text, Allowed: "must be at most the limit in spec.resources, which is " + limit.String()})
			}
		}
	}
	return errors.Join(errs...)
}

// chooseResources decides what kuma-sidecar requests and is limited to. kuma-init has the same: it ends before the others start, so that it adds
// nothing to what the pod needs, and a LimitRange that allows the one allows the other.
func (in *injection) chooseResources() {
	in.resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	keep := isGuaranteed(&in.pod.Spec) && !in.leavesGuaranteed()
	for _, r := range computeResources {
		places := []demand{in.options.demands[r.name], in.ofNamespace[r.name], in.settings.resources[r.name]} // each wins over those before it
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

// setResource sets request and limit, where there is one.
func (in *injection) setResource(name corev1.ResourceName, request, limit *resource.Quantity) {
	if request != nil {
		in.resources.Requests[name] = request.DeepCopy()
	}
	if limit != nil {
		in.resources.Limits[name] = limit.DeepCopy()
	}
}

// choose returns request and limit. What a place does not say gives way to what it says: a limit below its request, a request above its limit.
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

// equal returns request and limit in a pod of QoS Guaranteed, in which both are the same: the limit of the nearest place that says
// anything, or else its request, with which Envoy has to come up.
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

// isGuaranteed reports whether a pod is of QoS Guaranteed by the resources of its containers, once the API server has set the requests
// that are missing to the limits. What the sidecar has does not count where the pod has resources of its own. Resources that say nothing, "resources: {}",
// count as such before Kubernetes 1.37, and then the pod is BestEffort whatever its containers have.
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

// leavesGuaranteed reports whether the annotations of the pod itself ask for a request below the limit, with which it cannot stay of QoS
// Guaranteed.
func (in *injection) leavesGuaranteed() bool {
	leaves := false
	for _, r := range computeResources {
		if d := in.settings.resources[r.name]; d.request != nil && d.limit != nil && d.request.Cmp(d.limit.Quantity) != 0 {
			in.warn("%s: %q: it is less than the limit, %s, so that this pod is not of QoS Guaranteed any more", d.request.field, d.request.text, d.limit.text)
			leaves = true
		}
	}
	return leaves
}

// limitOfPod returns what a pod may use of a resource with all its containers, false if it does not say.
func (in *injection) limitOfPod(name corev1.ResourceName) (limit resource.Quantity, ok bool) {
	if r := in.pod.Spec.Resources; r != nil {
		limit, ok = r.Limits[name]
	}
	return limit, ok
}

// isShared reports whether a pod has a resource for all its containers.
func isShared(spec *corev1.PodSpec, name corev1.ResourceName) bool {
	if spec.Resources == nil {
		return false
	}
	_, limited := spec.Resources.Limits[name]
	_, requested := spec.Resources.Requests[name]
	return limited || requested
}

// shareResource gives our containers of a resource that the pod has for all of its containers no more than the pod's annotations ask for: the API
// server refuses a container limit above the pod's, and containers that request more than the pod.
func (in *injection) shareResource(r computeResource, asked demand) {
	if asked == (demand{}) {
		in.warn("spec.resources: %s and %s have no %s of their own, the pod's is for all", mesh.ContainerInit, mesh.ContainerSidecar, r.name)
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

// keepRequest writes what the pod requests of a resource if it is only limited, and no container says anything: by default that is the limit, but
// where a container requests some, that.
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
	if !limited || requested || slices.ContainsFunc(spec.InitContainers, says) || slices.ContainsFunc(spec.Containers, says) {
		return
	}
	const path = "/spec/resources/requests"
	if spec.Resources.Requests == nil && !in.patch.has(path) {
		in.patch.add(path, struct{}{})
	}
	in.patch.add(path+"/"+string(name), limit)
}

// cloneResources returns a copy: two containers have the same.
func cloneResources(r *corev1.ResourceRequirements) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: maps.Clone(r.Requests), Limits: maps.Clone(r.Limits)}
}

package check

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// shop returns a pod of a Deployment in namespace shop.
func shop(name string, change func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{ObjectMeta: named(name+"-5f6d-x1", map[string]string{"pod-template-hash": "5f6d"})}
	p.Namespace = "shop"
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: name + "-5f6d", Controller: new(true)}}
	p.Spec.Containers = []corev1.Container{{Name: "app"}}
	if change != nil {
		change(&p)
	}
	return p
}

func declares(ports ...int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, port := range ports {
			p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, corev1.ContainerPort{ContainerPort: port})
		}
	}
}

func injected(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: mesh.VolumeIdentity}} }

func labelled(value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[mesh.LabelOwnInjection] = value }
}

// namespacesOf returns namespace shop with this value of the label, and namespace none without the label.
func namespacesOf(value string) read[[]corev1.Namespace] {
	labels := map[string]string{}
	if value != "" {
		labels[mesh.LabelOwnInjection] = value
	}
	return is([]corev1.Namespace{{ObjectMeta: named("shop", labels)}})
}

func podsOf(pods ...corev1.Pod) read[[]corev1.Pod] { return is(pods) }

func TestDeclaredPorts(t *testing.T) {
	const none = "[ok]   ports: no workload declares 5670, 9000, 9902, 15001, 15006, 15022\n"
	const do = "       do: change the application's port; for 5670, alternatively set the pods' annotation sonde.dev/metrics-port to another port or \"0\"\n"
	tests{
		"none":         {facts{pods: podsOf(shop("web", declares(8080))), namespaces: namespacesOf("enabled")}, none},
		"of a sidecar": {facts{pods: podsOf(shop("web", func(p *corev1.Pod) { injected(p); declares(9902)(p) })), namespaces: namespacesOf("enabled")}, none},
		"UDP": {facts{pods: podsOf(shop("web", func(p *corev1.Pod) {
			declares(9902)(p)
			p.Spec.Containers[0].Ports[0].Protocol = corev1.ProtocolUDP
		})), namespaces: namespacesOf("enabled")}, none},
		"of the node": {facts{pods: podsOf(shop("web", func(p *corev1.Pod) { declares(9902)(p); p.Spec.HostNetwork = true })), namespaces: namespacesOf("enabled")}, none},
		"another port for Prometheus": {facts{pods: podsOf(shop("web", func(p *corev1.Pod) {
			declares(5670)(p)
			p.Annotations = map[string]string{mesh.AnnotationMetricsPort: "0"}
		})), namespaces: namespacesOf("enabled")}, none},
		"9000": {facts{pods: podsOf(shop("web", declares(9000)), shop("web", declares(9000))), namespaces: namespacesOf("enabled")}, `
[warn] ports: workloads declare port 9000: their sidecars will use a port from 9001 to 9020 for probes
       Deployment/shop/web: container app has port 9000
       do: nothing, unless a NetworkPolicy names the port; annotation kuma.io/virtual-probes-port sets another one
`},
		"of those that ask": {facts{pods: podsOf(shop("web", declares(15001, 5670)), shop("db", declares(8080))), namespaces: namespacesOf("enabled")}, `
[fail] ports: workloads that ask for a sidecar declare its ports: the webhook will reject their next pods
       Deployment/shop/web: container app has port 15001
       Deployment/shop/web: container app has port 5670
` + do},
		"of those that ask for none yet": {facts{pods: podsOf(shop("web", declares(15022)), shop("own", func(p *corev1.Pod) { declares(15006)(p); labelled("enabled")(p) })), namespaces: namespacesOf("")}, `
[fail] ports: workloads that ask for a sidecar declare its ports: the webhook will reject their next pods
       Deployment/shop/own: container app has port 15006
` + do + `[warn] ports: workloads without a sidecar declare its ports: with the injection label, the webhook would reject their pods
       Deployment/shop/web: container app has port 15022
` + do},
		"may not be read": {facts{pods: read[[]corev1.Pod]{err: errForbidden}}, `
[warn] ports: not checked: things is forbidden: no right
       do: get the right, or ask a user who has it to check
`},
	}.run(t, declaredPorts)
}

func TestGateways(t *testing.T) {
	asks := func(p *corev1.Pod) { injected(p); p.Annotations = map[string]string{mesh.AnnotationGateway: "enabled"} }
	is := func(p *corev1.Pod) {
		asks(p)
		p.Spec.InitContainers = []corev1.Container{{Name: mesh.ContainerInit, Args: []string{mesh.ArgRedirectInbound + "false"}}}
	}
	tests{
		"none": {facts{pods: podsOf(shop("web", injected))}, "[ok]   gateways: 0 gateways, and no other pod has the annotation\n"},
		"of another mesh, or that says no": {facts{pods: podsOf(shop("kong", func(p *corev1.Pod) { asks(p); p.Spec.Volumes = nil }), shop("web", func(p *corev1.Pod) {
			asks(p)
			p.Annotations[mesh.AnnotationGateway] = "disabled"
		}))}, "[ok]   gateways: 0 gateways, and no other pod has the annotation\n"},
		"one": {facts{pods: podsOf(shop("kong", is))}, "[ok]   gateways: 1 gateway, and no other pod has the annotation\n"},
		"one that an earlier release has injected": {facts{pods: podsOf(shop("kong", asks), shop("kong", asks), shop("new", is))}, `
[warn] gateways: workloads got kuma.io/gateway: enabled before it had an effect: their next pods accept plaintext from anyone at every port, even in mode STRICT
       Deployment/shop/kong
       do: remove the annotation from workloads that are not gateways before their pods are recreated
`},
	}.run(t, gateways)
}

// nacked returns a proxy whose Envoy rejects a listener.
func nacked(reason string) *adminv1.Proxy {
	return &adminv1.Proxy{Mesh: "default", Name: "web.shop", Streams: []*adminv1.Stream{{Types: []*adminv1.TypeStatus{{Nacks: []*adminv1.Nack{{Reason: reason}}}}}}}
}

// said returns a pod whose sidecar has this termination message.
func said(words string) corev1.Pod {
	return shop("web", func(p *corev1.Pod) {
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{
			Name: mesh.ContainerSidecar, LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: words}},
		}}
	})
}

// appSaid returns an injected pod whose application has this termination message.
func appSaid(words string) corev1.Pod {
	return shop("web", func(p *corev1.Pod) {
		injected(p)
		p.Spec.InitContainers = []corev1.Container{{Name: mesh.ContainerSidecar, Args: []string{mesh.ArgVirtualPort + "9001", mesh.ArgMetricsAddress + ":5671"}}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: words}}}}
	})
}

func TestTakenPorts(t *testing.T) {
	const do = "       do: change the application's port; for 9000, alternatively set the pods' annotation kuma.io/virtual-probes-port, for 5670 annotation sonde.dev/metrics-port\n"
	const none = "[ok]   taken ports: no port conflicts\n"
	tests{
		"none":            {facts{pods: podsOf(said("")), admin: is(admin{proxies: []*adminv1.Proxy{nacked("no such cluster")}})}, none},
		"not of our port": {facts{pods: podsOf(said("listen for something: already in use"))}, none},
		"by Envoy's refusal": {facts{admin: is(admin{proxies: []*adminv1.Proxy{nacked("Error adding/updating listener(s) in: cannot bind '0.0.0.0:15006': Address already in use")}})}, `
[fail] taken ports: the sidecar and another process of the pod use the same port
       default/web.shop: Envoy cannot listen on port 15006, for redirection
` + do},
		"of an application's port": {facts{admin: is(admin{proxies: []*adminv1.Proxy{nacked("cannot bind '[::]:8080': Address already in use")}})}, `
[fail] taken ports: the sidecar and another process of the pod use the same port
       default/web.shop: Envoy cannot listen on port 8080
` + do},
		"by the agent's last words": {facts{pods: podsOf(said("time=12:30:45 listen\nsonde-dp: run: --admin-addr: \"127.0.0.1:9902\": listen tcp 127.0.0.1:9902: bind: address already in use\n"))}, `
[fail] taken ports: the sidecar and another process of the pod use the same port
       Deployment/shop/web: the agent cannot listen on port 9902, for metrics of the sidecar
` + do},
		"IPv6": {facts{pods: podsOf(said("open the ports for probes at $INSTANCE_IP: listen tcp [fd00::1]:9000: bind: address already in use"))}, `
[fail] taken ports: the sidecar and another process of the pod use the same port
       Deployment/shop/web: the agent cannot listen on port 9000, for probes
` + do},
		"a sidecar that is Ready since": {facts{pods: podsOf(func() corev1.Pod {
			p := said("listen tcp [fd00::1]:9000: bind: address already in use")
			p.Status.InitContainerStatuses[0].Ready = true
			return p
		}())}, none},
		"by the application's last words": {facts{pods: podsOf(appSaid("listen tcp :15006: bind: address already in use"))}, `
[fail] taken ports: the sidecar and another process of the pod use the same port
       Deployment/shop/web: container app cannot listen on port 15006, which the sidecar uses, for redirection
` + do},
		"9000, where the sidecar has 9001": {facts{pods: podsOf(appSaid("listen tcp :9000: bind: address already in use"))}, none},
		"5670, where the sidecar has 5671": {facts{pods: podsOf(appSaid("listen tcp :5670: bind: address already in use"))}, none},
		"5671, where the sidecar has that": {facts{pods: podsOf(appSaid("listen tcp :5671: bind: address already in use"))}, `
[fail] taken ports: the sidecar and another process of the pod use the same port
       Deployment/shop/web: container app cannot listen on port 5671, which the sidecar uses
` + do},
		"an application without a sidecar": {facts{pods: podsOf(shop("web", func(p *corev1.Pod) {
			p.Status = appSaid("listen tcp :15006: bind: address already in use").Status
		}))}, none},
		"a pod that has ended": {facts{pods: podsOf(func() corev1.Pod {
			p := appSaid("listen tcp :15006: bind: address already in use")
			p.Status.Phase = corev1.PodFailed
			return p
		}())}, none},
		"what Envoy refuses is not known": {facts{admin: read[admin]{err: errForbidden}}, ""},
		"no port":                         {facts{pods: podsOf(said("listen tcp 127.0.0.1:99999: bind: address already in use"))}, none},
	}.run(t, takenPorts)
}

func TestNotInjected(t *testing.T) {
	ended := shop("done", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	alone := shop("alone", func(p *corev1.Pod) { p.OwnerReferences = nil })
	tests{
		"all have it": {facts{pods: podsOf(shop("web", injected), ended, shop("no", labelled("disabled"))), namespaces: namespacesOf("enabled")}, "[ok]   pods: 1 pods have a sidecar, no pod lacks one\n"},
		"some have none": {facts{pods: podsOf(shop("web", nil), shop("web", nil), alone), namespaces: namespacesOf("enabled")}, `
[fail] pods: pods should have a sidecar but have none: they were created before the label was set, or without the webhook
       Deployment/shop/web: 2 pods
       Pod/shop/alone-5f6d-x1: 1 pod
       do: restart these workloads with kubectl rollout restart, and delete pods that no controller recreates
`},
		"a wrong label": {facts{pods: podsOf(shop("web", labelled("yes"))), namespaces: namespacesOf("")}, `
[warn] pods: pods ask for a sidecar but cannot get one
       Deployment/shop/web: metadata.labels["sonde.dev/sidecar-injection"]: "yes": must be enabled or disabled
       do: correct the label, configure only one mesh to inject them, or accept that they have no sidecar
`},
		"the network of the node": {facts{pods: podsOf(shop("web", func(p *corev1.Pod) { p.Spec.HostNetwork = true })), namespaces: namespacesOf("enabled")}, `
[warn] pods: pods ask for a sidecar but cannot get one
       Deployment/shop/web: spec.hostNetwork: redirection would apply to the whole node
       do: correct the label, configure only one mesh to inject them, or accept that they have no sidecar
`},
		"another mesh has it": {facts{pods: podsOf(shop("web", func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "linkerd-proxy"})
		})), namespaces: namespacesOf("enabled")}, `
[warn] pods: pods ask for a sidecar but cannot get one
       Deployment/shop/web: containers[linkerd-proxy]: it has a sidecar of Linkerd, which gets its connections
       do: correct the label, configure only one mesh to inject them, or accept that they have no sidecar
`},
		"two meshes have it": {facts{pods: podsOf(shop("web", func(p *corev1.Pod) {
			injected(p)
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "istio-proxy"})
		})), namespaces: namespacesOf("enabled")}, `
[fail] pods: pods have sidecars of both Sonde and another mesh: only one of them gets the connections
       Deployment/shop/web: containers[istio-proxy]: Istio
       do: configure only one mesh to inject them, and restart these workloads with kubectl rollout restart
`},
		"Kuma's label is not ours": {facts{
			mutating: configurations(ours(false)), pods: podsOf(shop("web", nil)), namespaces: is([]corev1.Namespace{{ObjectMeta: named("shop", map[string]string{mesh.LabelInjection: "enabled"})}}),
		}, "[ok]   pods: 0 pods have a sidecar, no pod lacks one\n"},
	}.run(t, notInjected)
}

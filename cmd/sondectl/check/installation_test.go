package check

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/cluster"
	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/identity/ca"
)

func TestEndpoints(t *testing.T) {
	slice := func(ready ...*bool) read[[]discoveryv1.EndpointSlice] {
		s := discoveryv1.EndpointSlice{}
		for _, r := range ready {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{Ready: r}})
		}
		return is([]discoveryv1.EndpointSlice{s})
	}
	const none = `
[fail] webhook Service: Service sonde-cp in namespace sonde-system has no endpoint that is Ready: the API server cannot ask the webhook, and no pod that is to be injected can be made
       do: kubectl -n sonde-system get pods,endpointslices: the selector of the Service has to match replicas that are Ready
`
	tests{
		"two":      {facts{endpoints: slice(new(true), nil, new(false))}, "[ok]   webhook Service: 2 endpoints Ready\n"},
		"none":     {facts{}, none},
		"draining": {facts{endpoints: slice(new(false))}, none},
	}.run(t, endpoints)
}

func TestDryRunPod(t *testing.T) {
	good := shop("web", injected)
	plain := shop("web", nil)
	tests{
		"injected": {facts{dryRun: dryRun{namespace: "default", pod: &good}}, "[ok]   webhook: the API server has a pod in namespace default injected (dry run)\n"},
		"not asked": {facts{dryRun: dryRun{namespace: "default", pod: &plain}}, `
[fail] webhook: the API server does not ask the webhook about a pod in namespace default that asks for a sidecar
       do: see whether MutatingWebhookConfiguration sonde is there, and as the chart makes it: helm upgrade puts it right
`},
		"no right": {facts{dryRun: dryRun{namespace: "default", err: errForbidden}}, `
[warn] webhook: not checked: no pod may be made in namespace default: things is forbidden: no right
       do: name a namespace with --pod-namespace where you may make pods, and where Pod Security allows NET_ADMIN
`},
		"refused": {facts{dryRun: dryRun{namespace: "default", err: errors.New(`admission webhook "pod.inject.sonde.dev" denied the request: no mesh`)}}, `
[fail] webhook: it refuses a pod in namespace default: admission webhook "pod.inject.sonde.dev" denied the request: no mesh
       do: mend what it names, or name another namespace with --pod-namespace
`},
		"not reached": {facts{dryRun: dryRun{namespace: "default", err: errors.New(`failed calling webhook "namespace.inject.sonde.dev": no endpoints`)}}, `
[fail] webhook: the API server does not reach it, so that pods that are to be injected cannot be made: failed calling webhook "namespace.inject.sonde.dev": no endpoints
       do: see that replicas are Ready, that firewalls and NetworkPolicies let API servers reach port 5443 of namespace sonde-system, and that the caBundle of MutatingWebhookConfiguration sonde is that of its certificate
`},
	}.run(t, dryRunPod)
}

// until returns a CA that ends then.
func until(t *testing.T, end time.Time) *x509.Certificate {
	t.Helper()
	c, err := ca.New(&x509.Certificate{Subject: ca.Subject("test")}, end.Add(-time.Hour), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return c.Cert
}

func bundleOf(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

func TestCertificates(t *testing.T) {
	years, days, gone := until(t, now.AddDate(5, 0, 0)), until(t, now.Add(72*time.Hour)), until(t, now.Add(-time.Minute))
	with := func(bundles ...[]byte) (mutating read[[]admissionv1.MutatingWebhookConfiguration]) {
		c := admissionv1.MutatingWebhookConfiguration{ObjectMeta: named(configurationName, nil)}
		for _, b := range bundles {
			c.Webhooks = append(c.Webhooks, admissionv1.MutatingWebhook{ClientConfig: admissionv1.WebhookClientConfig{CABundle: b}})
		}
		return configurations(c)
	}
	meshes := func(expires time.Time) []*adminv1.Mesh {
		return []*adminv1.Mesh{{Object: []byte(`{"name":"blue"}`), CaExpires: timestamppb.New(expires)}, {Object: []byte(`{"name":"plain"}`)}}
	}
	proxy := func(expires time.Time) []*adminv1.Proxy {
		return []*adminv1.Proxy{{Mesh: "blue", Name: "web.shop", Agent: &adminv1.Agent{CertificateExpires: timestamppb.New(expires)}}, {Mesh: "blue", Name: "away"}}
	}
	tests{
		"all good": {
			facts{servingCA: is([]*x509.Certificate{years}), mutating: with(bundleOf(years), bundleOf(years)), admin: is(admin{serving: until(t, now.AddDate(0, 0, 20)), meshes: meshes(now.AddDate(1, 0, 0)), proxies: proxy(now.Add(9 * time.Hour))})},
			"[ok]   certificates: 3 certificates, the first to end at 2026-12-17T12:00:00Z: the certificate of the control plane\n",
		},
		"the serving CA ends": {facts{servingCA: is([]*x509.Certificate{days})}, `
[warn] certificates: the CA of the control plane ends at 2026-11-30T12:00:00Z, in 3 days: then no agent connects any more
       do: sondectl rotate serving-ca (docs/guides/serving-ca.md)
`},
		"the serving CA has ended": {facts{servingCA: is([]*x509.Certificate{gone})}, `
[fail] certificates: the CA of the control plane has ended at 2026-11-27T11:59:00Z: no agent connects any more
       do: sondectl rotate serving-ca (docs/guides/serving-ca.md)
`},
		"the certificate of the webhook ends": {facts{servingCA: is([]*x509.Certificate{years}), mutating: with(bundleOf(until(t, now.Add(time.Hour))))}, `
[warn] certificates: the CA of the webhook (caBundle of MutatingWebhookConfiguration sonde) ends at 2026-11-27T13:00:00Z, in 1h0m0s: then pods that are to be injected cannot be made
       do: renew it with the Secret that the chart's webhook.certificate.secretName names
`},
		"no caBundle": {facts{mutating: with(nil, nil)}, `
[fail] certificates: MutatingWebhookConfiguration sonde has no caBundle, so that the API server does not trust the webhook
       do: see the log of the leading replica, which writes it, or of cert-manager's CA injector where that does
`},
		"the control plane does not renew its own": {facts{admin: is(admin{serving: days})}, `
[warn] certificates: the certificate of the control plane ends at 2026-11-30T12:00:00Z, in 3 days: then no agent connects any more
       do: see the log of the control plane, which renews it ten days before: it says why not
`},
		"the CA of a mesh ends": {facts{admin: is(admin{meshes: meshes(now.Add(24 * time.Hour))})}, `
[warn] certificates: the CA of mesh "blue" ends at 2026-11-28T12:00:00Z, in 24h0m0s: then none of its proxies gets a certificate
       do: sondectl rotate ca --mesh blue --wait
`},
		"a proxy does not renew its own": {facts{admin: is(admin{meshes: meshes(now.AddDate(1, 0, 0)), proxies: proxy(now.Add(5 * time.Hour))})}, `
[fail] certificates: certificates of proxies are not renewed although their agents are connected: they serve until these end
       blue/web.shop: until 2026-11-27T17:00:00Z
       do: kubectl logs POD -c kuma-sidecar says why
`},
		"may not be read": {facts{servingCA: read[[]*x509.Certificate]{err: errForbidden}}, `
[warn] certificates: not checked: things is forbidden: no right
       do: have it checked by a user who has the right, or get that
`},
	}.run(t, certificates)
}

func TestReplicas(t *testing.T) {
	on := func(name, node string, ready bool) corev1.Pod {
		p := replica("sonde-system", name, "sonde")
		p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
		if ready {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		return p
	}
	gone := on("sonde-cp-c", "c", false)
	gone.DeletionTimestamp = &metav1.Time{Time: now}
	deployment := func(n int32) read[*appsv1.Deployment] {
		return is(&appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: new(n)}})
	}
	plane := func(pods ...corev1.Pod) cluster.Plane { return cluster.Plane{Replicas: pods} }
	none := read[*appsv1.Deployment]{err: apierrors.NewNotFound(schema.GroupResource{Resource: "deployments"}, "sonde-cp")}
	tests{
		"two":              {facts{plane: plane(on("sonde-cp-a", "a", true), on("sonde-cp-b", "b", true), gone), deployment: deployment(2)}, "[ok]   replicas: 2 Ready, on 2 nodes\n"},
		"not of the chart": {facts{plane: plane(on("sonde-cp-a", "a", true), on("sonde-cp-b", "b", true)), deployment: none}, "[ok]   replicas: 2 Ready, on 2 nodes\n"},
		"one": {facts{plane: plane(on("sonde-cp-a", "a", true)), deployment: deployment(1)}, `
[warn] replicas: there is one alone: while it is away, pods that are to be injected cannot be made
       do: helm upgrade with --set replicas=2
`},
		"one node": {facts{plane: plane(on("sonde-cp-a", "a", true), on("sonde-cp-b", "a", true)), deployment: deployment(2)}, `
[warn] replicas: all 2 are on one node, and lost with it
       do: have a second node that they may run on, and delete one of the pods
`},
		"one is not Ready, and one is missing": {facts{plane: plane(on("sonde-cp-a", "a", true), on("sonde-cp-b", "b", false)), deployment: deployment(3)}, `
[fail] replicas: 1 of 3 Ready
       sonde-cp-b: its readiness probe fails
       do: kubectl -n sonde-system describe deployment,pods says why
`},
		"the API server has lost the nodes": {facts{plane: plane(lost("sonde-cp-a", "a"), lost("sonde-cp-b", "b")), deployment: deployment(2), nodes: is([]corev1.Node{unknown("a")})}, `
[fail] replicas: 0 of 2 Ready
       sonde-cp-a: the API server has lost its node a: its condition Ready is Unknown since 2026-11-27T12:00:00Z: NodeStatusUnknown
       sonde-cp-b: the API server has lost its node b
       do: bring the nodes back (kubectl get nodes). Kubernetes makes their replicas on other nodes after 5 minutes, if there are any
`},
		"one is not heard": {facts{plane: plane(on("sonde-cp-a", "a", true), on("sonde-cp-b", "b", true)), deployment: deployment(2), admin: is(admin{missing: []string{"sonde-cp-b"}})}, `
[fail] replicas: not heard by another replica: sonde-cp-b: what it knows of proxies the other does not
       do: have NetworkPolicies let the replicas reach each other at port 5682
`},
		"may not be read": {facts{plane: plane(on("sonde-cp-a", "a", true), on("sonde-cp-b", "b", true)), deployment: read[*appsv1.Deployment]{err: errForbidden}}, `
[warn] replicas: not checked: things is forbidden: no right
       do: have it checked by a user who has the right, or get that
`},
	}.run(t, replicas)
}

// lost returns a replica that the node controller has marked, and unknown a node that the API server has lost.
func lost(name, node string) corev1.Pod {
	p := replica("sonde-system", name, "sonde")
	p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	return p
}

func unknown(name string) corev1.Node {
	n := corev1.Node{ObjectMeta: named(name, nil)}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", LastTransitionTime: metav1.NewTime(now)}}
	return n
}

func TestControlPlane(t *testing.T) {
	tests{
		"it answers": {facts{}, "[ok]   control plane: a replica answers\n"},
		"it does not": {facts{admin: read[admin]{err: fmt.Errorf("ask the control plane: %w", &exit.Error{Code: exit.Unreachable, Err: errors.New("no replica is Ready")})}}, `
[fail] control plane: ask the control plane: no replica is Ready
       do: kubectl -n sonde-system logs deployment/sonde-cp; agents, the webhook and health are not checked further
`},
		"it cannot": {facts{plane: cluster.Plane{Replicas: []corev1.Pod{lost("sonde-cp-a", "a")}}, admin: read[admin]{err: &exit.Error{Code: exit.Unreachable, Err: errors.New("no connection")}}}, `
[fail] control plane: no connection
       do: bring the nodes back (kubectl get nodes). Kubernetes makes their replicas on other nodes after 5 minutes, if there are any; agents, the webhook and health are not checked further
`},
		"no right": {facts{admin: read[admin]{err: fmt.Errorf("ask the control plane: %w", errForbidden)}}, `
[warn] control plane: not checked: ask the control plane: things is forbidden: no right
       do: have it checked by a user who has the right, or get that
`},
	}.run(t, controlPlane)
	for name, check := range map[string]check{"health": health, "agents": agents, "servingCA": servingCA} {
		if lines := check.lines(&facts{admin: read[admin]{err: errForbidden}}); len(lines) > 0 {
			t.Errorf("%s without an answer of the control plane: %v, want no line", name, lines)
		}
	}
}

func TestHealth(t *testing.T) {
	checks := func(s adminv1.HealthCheck_Status) read[admin] {
		return is(admin{health: []*adminv1.HealthCheck{{Group: "readyz", Name: "ca", Status: s, Reason: "a reason"}, {Status: adminv1.HealthCheck_OK}}})
	}
	tests{
		"good": {facts{admin: checks(adminv1.HealthCheck_OK)}, "[ok]   health: 2 checks of the control plane pass\n"},
		"bad":  {facts{admin: checks(adminv1.HealthCheck_FAILED)}, "[fail] health: readyz/ca: a reason\n       do: docs/guides/health.md explains each check\n"},
		"odd":  {facts{admin: checks(adminv1.HealthCheck_WARNING)}, "[warn] health: readyz/ca: a reason\n       do: docs/guides/health.md explains each check\n"},
	}.run(t, health)
}

func TestAgents(t *testing.T) {
	of := func(a *adminv1.Agent, s *adminv1.AgentState) read[admin] {
		return is(admin{proxies: []*adminv1.Proxy{{Mesh: "default", Name: "web.shop", Agent: a, AgentState: s}}})
	}
	tests{
		"good": {facts{admin: of(&adminv1.Agent{}, &adminv1.AgentState{Phase: adminv1.AgentState_CONNECTED})}, "[ok]   agents: 1 connected\n"},
		"too old": {facts{admin: of(&adminv1.Agent{VersionSkew: "agent v0.1.0 is too old"}, nil)}, `
[warn] agents: versions that the control plane does not support: an agent may be one minor version older
       default/web.shop: agent v0.1.0 is too old
       do: kubectl rollout restart these workloads
`},
		"lost": {facts{admin: of(nil, &adminv1.AgentState{Phase: adminv1.AgentState_LOST, Since: timestamppb.New(now)})}, `
[warn] agents: without a session: their proxies get no changes and no certificates
       default/web.shop: lost since 2026-11-27T12:00:00Z
       do: sondectl get proxies, and kubectl logs POD -c kuma-sidecar
`},
		"refused": {facts{admin: of(nil, &adminv1.AgentState{Phase: adminv1.AgentState_WAITING, Refusal: "no Dataplane"})}, `
[warn] agents: without a session: their proxies get no changes and no certificates
       default/web.shop: may not join: no Dataplane
       do: sondectl get proxies, and kubectl logs POD -c kuma-sidecar
`},
		"too many": {facts{admin: is(admin{leftOut: 7})}, `
[warn] agents: 7 proxies are not checked: the control plane names so many no more
       do: look at the metrics of the control plane (docs/metrics.md)
`},
	}.run(t, agents)
}

func TestServingCA(t *testing.T) {
	follows := &adminv1.Agent{Features: []string{agentv1.FeatureServingCA}}
	tests{
		"good": {facts{admin: is(admin{proxies: []*adminv1.Proxy{{Agent: follows}, {}}, rotation: &adminv1.Rotation{Step: adminv1.Rotation_IDLE}})}, "[ok]   serving CA: no proxy holds an old one\n"},
		"old ones are held": {facts{admin: is(admin{rotation: &adminv1.Rotation{Missed: []*adminv1.Waiting{{Mesh: "default", Name: "web.shop"}}}})}, `
[fail] serving CA: pods hold an old one, and do not trust the control plane of now
       default/web.shop
       do: delete these pods, or give agents outside of the cluster the new serving-ca.crt
`},
		"one cannot follow": {facts{admin: is(admin{proxies: []*adminv1.Proxy{{Mesh: "default", Name: "web.shop", Agent: &adminv1.Agent{}}}})}, `
[warn] serving CA: agents that cannot follow its next rotation
       default/web.shop
       do: restart these workloads before sondectl rotate serving-ca
`},
		"a rotation": {facts{admin: is(admin{rotation: &adminv1.Rotation{Step: adminv1.Rotation_TRUST_BOTH, Waiting: []*adminv1.Waiting{{}}}})}, `
[warn] serving CA: a rotation is in progress, and waits for 1 agent
       do: sondectl rotate serving-ca --status
`},
	}.run(t, servingCA)
}

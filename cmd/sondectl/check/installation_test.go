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
[fail] webhook Service: Service sonde-cp in namespace sonde-system has no Ready endpoint: the API server cannot call the webhook, so pods that need injection cannot be created
       do: see kubectl -n sonde-system get pods,endpointslices: the Service's selector must match Ready replicas
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
		"injected": {facts{dryRun: dryRun{namespace: "default", pod: &good}}, "[ok]   webhook: dry run: a pod in namespace default is injected\n"},
		"not asked": {facts{dryRun: dryRun{namespace: "default", pod: &plain}}, `
[fail] webhook: the API server does not call the webhook for a pod in namespace default that asks for a sidecar
       do: check that MutatingWebhookConfiguration sonde exists and is unchanged: helm upgrade restores it
`},
		"no right": {facts{dryRun: dryRun{namespace: "default", err: errForbidden}}, `
[warn] webhook: not checked: cannot create a pod in namespace default: things is forbidden: no right
       do: set --pod-namespace to a namespace where you have the right to create pods, and where Pod Security allows NET_ADMIN
`},
		"refused": {facts{dryRun: dryRun{namespace: "default", err: errors.New(`admission webhook "pod.inject.sonde.dev" denied the request: no mesh`)}}, `
[fail] webhook: the webhook rejects a pod in namespace default: admission webhook "pod.inject.sonde.dev" denied the request: no mesh
       do: fix the error, or set another namespace with --pod-namespace
`},
		"not reached": {facts{dryRun: dryRun{namespace: "default", err: errors.New(`failed calling webhook "namespace.inject.sonde.dev": no endpoints`)}}, `
[fail] webhook: the API server does not reach the webhook, so pods that need injection cannot be created: failed calling webhook "namespace.inject.sonde.dev": no endpoints
       do: check that replicas are Ready, that firewalls and NetworkPolicies let API servers reach port 5443 of namespace sonde-system, and that the caBundle of MutatingWebhookConfiguration sonde matches its certificate
`},
	}.run(t, dryRunPod)
}

// until returns a CA that expires at this time.
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
			"[ok]   certificates: 3 certificates, the first expires at 2026-12-17T12:00:00Z: the certificate of the control plane\n",
		},
		"the serving CA ends": {facts{servingCA: is([]*x509.Certificate{days})}, `
[warn] certificates: the CA of the control plane expires at 2026-11-30T12:00:00Z, in 3 days: then agents can no longer connect
       do: sondectl rotate serving-ca (docs/guides/serving-ca.md)
`},
		"the serving CA has ended": {facts{servingCA: is([]*x509.Certificate{gone})}, `
[fail] certificates: the CA of the control plane expired at 2026-11-27T11:59:00Z: agents can no longer connect
       do: sondectl rotate serving-ca (docs/guides/serving-ca.md)
`},
		"the certificate of the webhook ends": {facts{servingCA: is([]*x509.Certificate{years}), mutating: with(bundleOf(until(t, now.Add(time.Hour))))}, `
[warn] certificates: the CA of the webhook (caBundle of MutatingWebhookConfiguration sonde) expires at 2026-11-27T13:00:00Z, in 1h0m0s: then pods that need injection cannot be created
       do: renew it with the Secret that the chart's webhook.certificate.secretName names
`},
		"no caBundle": {facts{mutating: with(nil, nil)}, `
[fail] certificates: MutatingWebhookConfiguration sonde has no caBundle: the API server does not trust the webhook
       do: see the log of the leading replica, which writes the caBundle, or of cert-manager's CA injector if you use it
`},
		"the control plane does not renew its own": {facts{admin: is(admin{serving: days})}, `
[warn] certificates: the certificate of the control plane expires at 2026-11-30T12:00:00Z, in 3 days: then agents can no longer connect
       do: the control plane renews it ten days before expiry: see its log for the error
`},
		"the CA of a mesh ends": {facts{admin: is(admin{meshes: meshes(now.Add(24 * time.Hour))})}, `
[warn] certificates: the CA of mesh "blue" expires at 2026-11-28T12:00:00Z, in 24h0m0s: then its proxies get no certificates
       do: sondectl rotate ca --mesh blue --wait
`},
		"a proxy does not renew its own": {facts{admin: is(admin{meshes: meshes(now.AddDate(1, 0, 0)), proxies: proxy(now.Add(5 * time.Hour))})}, `
[fail] certificates: certificates of proxies are not renewed although their agents are connected: the proxies serve until the certificates expire
       blue/web.shop: until 2026-11-27T17:00:00Z
       do: see kubectl logs POD -c kuma-sidecar for the reason
`},
		"may not be read": {facts{servingCA: read[[]*x509.Certificate]{err: errForbidden}}, `
[warn] certificates: not checked: things is forbidden: no right
       do: get the right, or ask a user who has it to check
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
[warn] replicas: only one replica: while it does not run, pods that need injection cannot be created
       do: helm upgrade with --set replicas=2
`},
		"one node": {facts{plane: plane(on("sonde-cp-a", "a", true), on("sonde-cp-b", "a", true)), deployment: deployment(2)}, `
[warn] replicas: all 2 replicas run on one node, and fail with it
       do: provide a second node for them, and delete one of the pods
`},
		"one is not Ready, and one is missing": {facts{plane: plane(on("sonde-cp-a", "a", true), on("sonde-cp-b", "b", false)), deployment: deployment(3)}, `
[fail] replicas: 1 of 3 Ready
       sonde-cp-b: its readiness probe fails
       do: see kubectl -n sonde-system describe deployment,pods
`},
		"the API server has lost the nodes": {facts{plane: plane(lost("sonde-cp-a", "a"), lost("sonde-cp-b", "b")), deployment: deployment(2), nodes: is([]corev1.Node{unknown("a")})}, `
[fail] replicas: 0 of 2 Ready
       sonde-cp-a: the API server has lost contact with its node a: its condition Ready is Unknown since 2026-11-27T12:00:00Z: NodeStatusUnknown
       sonde-cp-b: the API server has lost contact with its node b
       do: repair the nodes (see kubectl get nodes). After 5 minutes, Kubernetes recreates their replicas on other nodes, if there are any
`},
		"one is not heard": {facts{plane: plane(on("sonde-cp-a", "a", true), on("sonde-cp-b", "b", true)), deployment: deployment(2), admin: is(admin{missing: []string{"sonde-cp-b"}})}, `
[fail] replicas: disconnected from another replica: sonde-cp-b: the other replica lacks their reports about proxies
       do: allow the replicas to reach each other at port 5682 in NetworkPolicies
`},
		"may not be read": {facts{plane: plane(on("sonde-cp-a", "a", true), on("sonde-cp-b", "b", true)), deployment: read[*appsv1.Deployment]{err: errForbidden}}, `
[warn] replicas: not checked: things is forbidden: no right
       do: get the right, or ask a user who has it to check
`},
	}.run(t, replicas)
}

// lost returns a replica that the node controller has marked, and unknown a lost node.
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
		"it does not": {facts{admin: read[admin]{err: fmt.Errorf("call control plane: %w", &exit.Error{Code: exit.Unreachable, Err: errors.New("no replica is Ready")})}}, `
[fail] control plane: call control plane: no replica is Ready
       do: kubectl -n sonde-system logs deployment/sonde-cp; agents, the webhook and health are not checked
`},
		"it cannot": {facts{plane: cluster.Plane{Replicas: []corev1.Pod{lost("sonde-cp-a", "a")}}, admin: read[admin]{err: &exit.Error{Code: exit.Unreachable, Err: errors.New("no connection")}}}, `
[fail] control plane: no connection
       do: repair the nodes (see kubectl get nodes). After 5 minutes, Kubernetes recreates their replicas on other nodes, if there are any; agents, the webhook and health are not checked
`},
		"no right": {facts{admin: read[admin]{err: fmt.Errorf("call control plane: %w", errForbidden)}}, `
[warn] control plane: not checked: call control plane: things is forbidden: no right
       do: get the right, or ask a user who has it to check
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
		"bad":  {facts{admin: checks(adminv1.HealthCheck_FAILED)}, "[fail] health: readyz/ca: a reason\n       do: see docs/guides/health.md\n"},
		"odd":  {facts{admin: checks(adminv1.HealthCheck_WARNING)}, "[warn] health: readyz/ca: a reason\n       do: see docs/guides/health.md\n"},
	}.run(t, health)
}

func TestAgents(t *testing.T) {
	of := func(a *adminv1.Agent, s *adminv1.AgentState) read[admin] {
		return is(admin{proxies: []*adminv1.Proxy{{Mesh: "default", Name: "web.shop", Agent: a, AgentState: s}}})
	}
	tests{
		"good": {facts{admin: of(&adminv1.Agent{}, &adminv1.AgentState{Phase: adminv1.AgentState_CONNECTED})}, "[ok]   agents: 1 connected\n"},
		"too old": {facts{admin: of(&adminv1.Agent{VersionSkew: "agent v0.1.0 is too old"}, nil)}, `
[warn] agents: agents with unsupported versions: an agent may be at most one minor version older than the control plane
       default/web.shop: agent v0.1.0 is too old
       do: restart these workloads with kubectl rollout restart
`},
		"lost": {facts{admin: of(nil, &adminv1.AgentState{Phase: adminv1.AgentState_LOST, Since: timestamppb.New(now)})}, `
[warn] agents: agents without a session: their proxies get no changes and no certificates
       default/web.shop: lost since 2026-11-27T12:00:00Z
       do: see sondectl get proxies and kubectl logs POD -c kuma-sidecar
`},
		"refused": {facts{admin: of(nil, &adminv1.AgentState{Phase: adminv1.AgentState_WAITING, Refusal: "no Dataplane"})}, `
[warn] agents: agents without a session: their proxies get no changes and no certificates
       default/web.shop: cannot join: no Dataplane
       do: see sondectl get proxies and kubectl logs POD -c kuma-sidecar
`},
		"too many": {facts{admin: is(admin{leftOut: 7})}, `
[warn] agents: 7 proxies are not checked: the control plane omits them from its list
       do: see the metrics of the control plane (docs/metrics.md)
`},
	}.run(t, agents)
}

func TestServingCA(t *testing.T) {
	follows := &adminv1.Agent{Features: []string{agentv1.FeatureServingCA}}
	tests{
		"good": {facts{admin: is(admin{proxies: []*adminv1.Proxy{{Agent: follows}, {}}, rotation: &adminv1.Rotation{Step: adminv1.Rotation_IDLE}})}, "[ok]   serving CA: no proxy has an old CA\n"},
		"old ones are held": {facts{admin: is(admin{rotation: &adminv1.Rotation{Missed: []*adminv1.Waiting{{Mesh: "default", Name: "web.shop"}}}})}, `
[fail] serving CA: pods with an old CA do not trust the current control plane
       default/web.shop
       do: delete these pods, or give agents outside of the cluster the new serving-ca.crt
`},
		"one cannot follow": {facts{admin: is(admin{proxies: []*adminv1.Proxy{{Mesh: "default", Name: "web.shop", Agent: &adminv1.Agent{}}}})}, `
[warn] serving CA: agents that do not support a rotation
       default/web.shop
       do: restart these workloads before sondectl rotate serving-ca
`},
		"a rotation": {facts{admin: is(admin{rotation: &adminv1.Rotation{Step: adminv1.Rotation_TRUST_BOTH, Waiting: []*adminv1.Waiting{{}}}})}, `
[warn] serving CA: a rotation is in progress and waits for 1 agent
       do: sondectl rotate serving-ca --status
`},
	}.run(t, servingCA)
}

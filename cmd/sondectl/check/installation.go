package check

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// admin holds the answers of a replica of the control plane.
type admin struct {
	meshes   []*adminv1.Mesh
	proxies  []*adminv1.Proxy
	rotation *adminv1.Rotation // rotation of the serving CA
	health   []*adminv1.HealthCheck
	// round is the leader's round of restart decisions, nil without a leader.
	round read[*adminv1.RestartRound]
	// missing names the replicas that are disconnected from this one; leftOut counts proxies omitted from its list.
	missing []string
	leftOut uint32
	// serving is the replica's TLS certificate.
	serving *x509.Certificate
}

// readInstallation reads the objects of an installation.
func (r *reader) readInstallation(ctx context.Context, do func(func())) {
	f := r.f
	do(func() {
		list, err := r.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
		if err != nil {
			list = &admissionv1.ValidatingWebhookConfigurationList{}
		}
		f.validating = readAs(r.in, "list webhook configurations", list.Items, err)
	})
	do(func() {
		list, err := r.client.DiscoveryV1().EndpointSlices(f.namespace).List(ctx, metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + "=" + serviceName,
		})
		if err != nil {
			list = &discoveryv1.EndpointSliceList{}
		}
		f.endpoints = readAs(r.in, "list EndpointSlices", list.Items, err)
	})
	do(func() {
		is, err := r.client.AppsV1().Deployments(f.namespace).Get(ctx, serviceName, metav1.GetOptions{})
		f.deployment = readAs(r.in, "get Deployment of the control plane", is, err)
	})
	do(func() {
		is, err := r.client.CoreV1().ConfigMaps(f.namespace).Get(ctx, mesh.ServingCAConfigMap, metav1.GetOptions{})
		if err != nil {
			is = &corev1.ConfigMap{}
		}
		f.servingCA = readAs(r.in, "read CAs of the control plane", parsePEM([]byte(is.Data[mesh.ServingCAKey])), err)
	})
	do(func() { f.dryRun = r.askForPod(ctx) })
	do(func() { f.admin = r.askPlane(ctx) })
}

// askPlane calls a replica of the control plane.
func (r *reader) askPlane(ctx context.Context) read[admin] {
	var is admin
	var from peer.Peer
	err := r.call(ctx, func(ctx context.Context, api adminv1.AdminServiceClient) error {
		meshes, err := api.ListMeshes(ctx, &adminv1.ListMeshesRequest{}, grpc.Peer(&from))
		if err != nil {
			return err
		}
		proxies, err := api.ListProxies(ctx, &adminv1.ListProxiesRequest{})
		if err != nil {
			return err
		}
		if is.rotation, err = api.GetServingRotation(ctx, &adminv1.GetServingRotationRequest{}); err != nil {
			return err
		}
		restarts, err := api.ListRestarts(ctx, &adminv1.ListRestartsRequest{})
		is.round = read[*adminv1.RestartRound]{restarts.GetRound(), err}
		health, err := api.GetHealth(ctx, &adminv1.GetHealthRequest{})
		is.meshes, is.proxies, is.health = meshes.GetMeshes(), proxies.GetProxies(), health.GetChecks()
		is.missing, is.leftOut = proxies.GetTail().GetMissingReplicas(), proxies.GetTail().GetLeftOut()
		return err
	})
	if shown, ok := from.AuthInfo.(credentials.TLSInfo); ok && len(shown.State.PeerCertificates) > 0 {
		is.serving = shown.State.PeerCertificates[0]
	}
	if err != nil {
		err = fmt.Errorf("call control plane: %w", err)
	}
	return read[admin]{is, err}
}

// parsePEM returns the certificates in a bundle, and ignores other blocks.
func parsePEM(bundle []byte) []*x509.Certificate {
	var all []*x509.Certificate
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			all = append(all, c)
		}
	}
	return all
}

// dryRun is the API server's response to the dry run of a pod that asks for a sidecar.
type dryRun struct {
	namespace string
	pod       *corev1.Pod
	// err is the API server's error, unchanged.
	err error
}

// podName is the name of the pod in the dry run.
const podName = "sondectl-check"

// Timeout and interval of retries if the API server does not reach the webhook: kube-proxy takes a second or two to
// route to replicas that have just become Ready.
const (
	reachWithin = 3 * time.Second
	reachEvery  = time.Second
)

// askForPod sends the dry run of a pod to the API server, which calls the webhook.
func (r *reader) askForPod(ctx context.Context) (d dryRun) {
	// The poll does not cancel requests, which have their own timeout, so that the last error is the API server's.
	_ = wait.PollUntilContextTimeout(ctx, reachEvery, reachWithin, true, func(context.Context) (done bool, err error) {
		d = r.askOnceForPod(ctx)
		return !d.unreached(), nil
	})
	return d
}

func (r *reader) askOnceForPod(ctx context.Context) dryRun {
	d := dryRun{namespace: r.asked.podNamespace}
	d.pod, d.err = r.client.CoreV1().Pods(d.namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: podName, Labels: map[string]string{mesh.LabelOwnInjection: "enabled"}},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: new(bool),
			Containers: []corev1.Container{{
				Name: "app", Image: "sondectl-check.invalid/none", SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(bool), RunAsNonRoot: new(true),
					SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
					Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if errors.Is(d.err, context.Canceled) {
		d.err = fmt.Errorf("create pod (dry run): %w", d.err)
	}
	return d
}

package kube

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/cri-streaming/pkg/streaming/portforward"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// kubelet forwards ports to replicas with the kubelet's code, without a node.
type kubelet struct {
	client kubernetes.Interface
	node   string
	port   int32

	mu     sync.Mutex
	planes map[string]*plane // by pod
	open   map[net.Conn]bool
}

// startKubelet starts a kubelet until the test ends.
func startKubelet(t *testing.T, client kubernetes.Interface) *kubelet {
	t.Helper()
	k := &kubelet{client: client, planes: map[string]*plane{}, open: map[net.Conn]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/portForward/{namespace}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		portforward.ServePortForward(w, r, k, r.PathValue("pod"), "", &portforward.V4Options{}, time.Minute, 30*time.Second, portforward.SupportedProtocols)
	})
	server := httptest.NewTLSServer(mux) // the API server does not verify its certificate
	t.Cleanup(server.Close)
	t.Cleanup(k.disconnect)
	k.port = int32(server.Listener.Addr().(*net.TCPAddr).Port)
	k.node = fmt.Sprintf("node-%d", k.port)
	node, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: k.node}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.CoreV1().Nodes().Delete(context.Background(), k.node, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = k.port
	if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return k
}

// PortForward implements portforward.PortForwarder.
func (k *kubelet) PortForward(_ context.Context, pod, _ string, port int32, stream io.ReadWriteCloser) error {
	defer func() { _ = stream.Close() }()
	k.mu.Lock()
	p := k.planes[pod]
	k.mu.Unlock()
	if p == nil || port != mesh.PortAdmin {
		return fmt.Errorf("failed to connect to localhost:%d inside the pod", port)
	}
	conn, err := net.Dial("tcp", p.admin)
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.open[conn] = true
	k.mu.Unlock()
	go func() {
		_, _ = io.Copy(conn, stream)
		_ = conn.Close()
	}()
	_, _ = io.Copy(stream, conn)
	_ = conn.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.open, conn)
	return nil
}

// stop closes the port of a pod.
func (k *kubelet) stop(pod string) {
	k.mu.Lock()
	delete(k.planes, pod)
	k.mu.Unlock()
	k.disconnect()
}

// disconnect closes all connections to pods.
func (k *kubelet) disconnect() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for conn := range k.open {
		_ = conn.Close()
	}
}

// run creates the pod of a control plane, as the chart's Deployment does, until the test ends.
func (k *kubelet) run(t *testing.T, namespace, name, release string, p *plane, more ...func(*corev1.Pod)) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"app.kubernetes.io/name": "sonde", "app.kubernetes.io/instance": release}},
		Spec:       corev1.PodSpec{NodeName: k.node, Containers: []corev1.Container{{Name: "sonde-cp", Image: "sonde"}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "127.0.0.1", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, change := range more {
		change(pod)
	}
	status := pod.Status
	pods := k.client.CoreV1().Pods(namespace)
	made, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.remove(t, namespace, name) })
	made.Status = status
	if _, err := pods.UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.planes[name] = p
}

// remove deletes a pod at once.
func (k *kubelet) remove(t *testing.T, namespace, name string) {
	t.Helper()
	err := k.client.CoreV1().Pods(namespace).Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

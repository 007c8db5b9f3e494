package watchdog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/test/must"
	"github.com/sonde-mesh/sonde/watchdog"
)

// Times of clusters in these tests: a lease expires after three seconds.
const (
	grace    = "4s"
	interval = "200ms"
	// longEnough is enough for a lease to expire and for the watchdog to act.
	longEnough = 6 * time.Second
)

func newClient(t testing.TB) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func mustCreate[O any](t testing.TB, _ O, err error) {
	t.Helper()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// scene is a namespace with dependants, and the nodes of a cluster.
type scene struct {
	t      *testing.T
	health string // health address of the last started watchdog
	client *kubernetes.Clientset
	// name of the namespace, and of the WatchedCluster.
	name  string
	nodes []string

	mu       sync.Mutex
	cut      bool     // the leases are not renewed
	order    []string // changes of dependants: "mcm 0", "kcm 2"
	replicas map[string]int32
}

// newScene creates nodes, whose leases are renewed until the test ends, and the dependants kcm, mcm and ca, whose
// status follows their replicas at once.
func newScene(t *testing.T, name string, nodes int) *scene {
	t.Helper()
	s := &scene{t: t, client: newClient(t), name: name, replicas: map[string]int32{}}
	for _, ns := range []string{name, "kube-node-lease"} {
		made, err := s.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
		mustCreate(t, made, err)
	}
	for dependant, n := range map[string]int32{"kcm": 2, "mcm": 1, "ca": 1} {
		labels := map[string]string{"app": dependant}
		made, err := s.client.AppsV1().Deployments(name).Create(t.Context(), &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: dependant},
			Spec: appsv1.DeploymentSpec{Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			}},
		}, metav1.CreateOptions{})
		mustCreate(t, made, err)
		s.replicas[dependant] = n
	}
	for i := range nodes {
		s.addNode(fmt.Sprint(name, "-", i))
	}
	s.background(s.renew)
	s.background(s.followReplicas)
	return s
}

// background runs a function until the test ends.
func (s *scene) background(run func(context.Context)) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.t.Context()))
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	s.t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

func (s *scene) addNode(name string) {
	s.t.Helper()
	made, err := s.client.CoreV1().Nodes().Create(s.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	mustCreate(s.t, made, err)
	now := metav1.NowMicro()
	lease, err := s.client.CoordinationV1().Leases("kube-node-lease").Create(s.t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{RenewTime: &now},
	}, metav1.CreateOptions{})
	mustCreate(s.t, lease, err)
	s.nodes = append(s.nodes, name)
	s.t.Cleanup(func() {
		ctx := context.Background()
		if err := errors.Join(s.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}), s.client.CoordinationV1().Leases("kube-node-lease").Delete(ctx, name, metav1.DeleteOptions{})); err != nil && !apierrors.IsNotFound(err) {
			s.t.Error(err)
		}
	})
}

// renew renews leases, as kubelets do, with a clock that is an hour slow.
func (s *scene) renew(ctx context.Context) {
	for ctx.Err() == nil {
		s.mu.Lock()
		cut := s.cut
		s.mu.Unlock()
		if !cut {
			for _, node := range s.nodes {
				patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, time.Now().Add(-time.Hour).UTC().Format(metav1.RFC3339Micro))
				_, _ = s.client.CoordinationV1().Leases("kube-node-lease").Patch(ctx, node, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{})
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// connect disconnects the nodes from the API server, or reconnects them.
func (s *scene) connect(connected bool) {
	s.t.Helper()
	if !connected && s.health != "" { // the watchdog can judge only nodes whose leases it has seen
		must.Poll(s.t, "the leases to be judged", func(ctx context.Context) error {
			text, err := body(ctx, s.health+"/metrics")
			if err == nil && !strings.Contains(text, `sonde_watchdog_leases{state="unjudged"} 0`) {
				err = errors.New("some are not")
			}
			return err
		})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = !connected
}

// followReplicas records how dependants are scaled, and sets their status to the desired replicas.
func (s *scene) followReplicas(ctx context.Context) {
	deployments := s.client.AppsV1().Deployments(s.name)
	for ctx.Err() == nil {
		w, err := deployments.Watch(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for e := range w.ResultChan() {
			d, is := e.Object.(*appsv1.Deployment)
			if !is {
				continue
			}
			s.mu.Lock()
			if n := *d.Spec.Replicas; s.replicas[d.Name] != n {
				s.replicas[d.Name] = n
				s.order = append(s.order, fmt.Sprint(d.Name, " ", n))
			}
			s.mu.Unlock()
			if d.Status.Replicas != *d.Spec.Replicas {
				patch := fmt.Sprintf(`{"status":{"replicas":%d}}`, *d.Spec.Replicas)
				_, _ = deployments.Patch(ctx, d.Name, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{}, "status")
			}
		}
		w.Stop()
	}
}

// taken returns the recorded changes of dependants, and clears the record.
func (s *scene) taken() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	order := s.order
	s.order = nil
	return order
}

// scaled waits until dependants have these replicas.
func (s *scene) scaled(kcm, mcm, ca int32) {
	s.t.Helper()
	must.Poll(s.t, fmt.Sprintf("kcm %d, mcm %d, ca %d", kcm, mcm, ca), func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.replicas["kcm"] != kcm || s.replicas["mcm"] != mcm || s.replicas["ca"] != ca {
			return fmt.Errorf("they have %v", s.replicas)
		}
		return nil
	})
}

// annotations returns the watchdog's annotations of a dependant as text.
func (s *scene) annotations(dependant string) string {
	s.t.Helper()
	d, err := s.client.AppsV1().Deployments(s.name).Get(s.t.Context(), dependant, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	var all []string
	for key, value := range d.Annotations {
		if _, short, is := strings.Cut(key, "dependency-watchdog.gardener.cloud/"); is {
			all = append(all, short+"="+value)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// setReplicas sets the replicas of a dependant, as an operator does.
func (s *scene) setReplicas(dependant string, n int) {
	s.t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n)
	if _, err := s.client.AppsV1().Deployments(s.name).Patch(s.t.Context(), dependant, "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) path() string {
	return "/apis/sonde.dev/v1alpha1/namespaces/" + s.name + "/watchedclusters"
}

// example has the dependants of the Dependency Watchdog's example.
const example = `[
{ref: {apiVersion: apps/v1, kind: Deployment, name: kcm}, scaleUp: {level: 0}, scaleDown: {level: 1}},
{ref: {apiVersion: apps/v1, kind: Deployment, name: mcm}, scaleUp: {level: 1, initialDelay: 300ms}, scaleDown: {level: 0}},
{ref: {apiVersion: apps/v1, kind: Deployment, name: ca}, optional: true, scaleUp: {level: 2}, scaleDown: {level: 0}}]`

// watchedCluster returns a WatchedCluster; reach is the part of its spec for the connection.
func (s *scene) watchedCluster(reach string) string {
	return "apiVersion: sonde.dev/v1alpha1\nkind: WatchedCluster\nmetadata: {name: " + s.name + "}\nspec:\n  " + reach + "\n  dependants: " + strings.ReplaceAll(example, "\n", " ") +
		"\n  settings: {probeInterval: " + interval + ", initialDelay: 0s, probeTimeout: 5s, kcmNodeMonitorGraceDuration: " + grace + ", backOffDurationForThrottledRequests: 300ms}\n"
}

// watch creates the WatchedCluster.
func (s *scene) watch(reach string) {
	s.t.Helper()
	if _, err := cluster.Do(s.t.Context(), http.MethodPost, s.path()+"?fieldValidation=Strict", "application/yaml", s.watchedCluster(reach)); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if _, err := cluster.Do(context.Background(), http.MethodDelete, s.path()+"/"+s.name, "", ""); err != nil {
			s.t.Error(err)
		}
	})
}

func (s *scene) object(ctx context.Context) (*v1alpha1.WatchedCluster, error) {
	text, err := cluster.Do(ctx, http.MethodGet, s.path()+"/"+s.name, "", "")
	if err != nil {
		return nil, err
	}
	var o v1alpha1.WatchedCluster
	return &o, json.Unmarshal([]byte(text), &o)
}

// verdict waits until the status has this verdict and cause.
func (s *scene) verdict(verdict, cause string) *v1alpha1.WatchedCluster {
	s.t.Helper()
	var o *v1alpha1.WatchedCluster
	must.Poll(s.t, "the verdict "+verdict+" "+cause, func(ctx context.Context) (err error) {
		if o, err = s.object(ctx); err == nil && (o.Status.Verdict != verdict || o.Status.Cause != cause) {
			err = fmt.Errorf("the status is %+v", o.Status)
		}
		return err
	})
	return o
}

// start starts a watchdog in this process, which ends with the test, or when the caller calls the
// returned function.
func (s *scene) start(replica string, change ...func(*watchdog.Options)) (stop func()) {
	s.t.Helper()
	o := watchdog.Options{
		Kubeconfig: cluster.Kubeconfig, Namespace: s.name, Name: watchdog.DefaultName, Replica: replica, HealthAddress: "127.0.0.1:0", Version: "test",
		Logger: slog.New(slog.NewTextHandler(s.t.Output(), nil)).With("replica", replica),
	}
	for _, c := range change {
		c(&o)
	}
	w, err := watchdog.New(s.t.Context(), o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.health = "http://" + w.HealthAddress().String()
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.t.Context()))
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("Run() of %s = %v", replica, err)
		}
	})
	s.t.Cleanup(stop)
	must.Poll(s.t, "the readiness of "+replica, func(ctx context.Context) error {
		_, err := body(ctx, "http://"+w.HealthAddress().String()+"/readyz")
		return err
	})
	return stop
}

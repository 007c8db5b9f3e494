package check

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/cluster"
	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
)

// Names of what the chart installs.
const (
	serviceName       = "sonde-cp" // of the Deployment and of the service account, too
	configurationName = "sonde"    // of both webhook configurations
)

const (
	// requestsPerSecond to the API server, and at once: an answer takes some hundred of them for all rights.
	requestsPerSecond = 50
	requestsAtOnce    = 8
	// podsPerPage is how many pods are read with one request.
	podsPerPage = 500
)

// read is what was read, or why it was not.
type read[T any] struct {
	is  T
	err error
}

// readAs returns a read of what get returns. An error is explained as that of doing.
func readAs[T any](in *cluster.Cluster, doing string, is T, err error) read[T] {
	return read[T]{is, in.Explain(doing, err)}
}

// facts are all that lines are made of, read once.
type facts struct {
	now time.Time
	// namespace is that of the control plane.
	namespace string
	installed bool
	// plane is the one that is checked, if it is installed.
	plane cluster.Plane

	server      string // version of the API server
	nodes       read[[]corev1.Node]
	namespaces  read[[]corev1.Namespace]
	pods        read[[]corev1.Pod]
	mutating    read[[]admissionv1.MutatingWebhookConfiguration]
	definitions read[[]unstructured.Unstructured]
	// rights are those of the caller before an installation, else those of the control plane.
	rights read[[]answer]
	// hook is the Job that the chart runs first, nil if there is none or it may not be read, and warnings are events in the namespace of the control plane: they
	// only say more about pods that do not start.
	hook     *batchv1.Job
	warnings []corev1.Event
	// tried is what Jobs on nodes have found, if they are asked for.
	tried read[tried]

	// The rest is read of an installation alone.
	validating read[[]admissionv1.ValidatingWebhookConfiguration]
	endpoints  read[[]discoveryv1.EndpointSlice]
	deployment read[*appsv1.Deployment]
	servingCA  read[[]*x509.Certificate]
	dryRun     dryRun
	admin      read[admin]
}

// reader reads facts.
type reader struct {
	in      *cluster.Cluster
	client  kubernetes.Interface
	dynamic dynamic.Interface
	call    func(ctx context.Context, work func(context.Context, adminv1.AdminServiceClient) error) error
	asked   request
	f       *facts
}

// read reads all facts. What cannot be read is in them; the error says why nothing can be.
func (o *Options) read(ctx context.Context, asked request) (*facts, error) {
	in, err := o.Cluster()
	if err != nil {
		return nil, err
	}
	config := rest.CopyConfig(in.Config)
	config.QPS, config.Burst = requestsPerSecond, requestsPerSecond
	config.WarningHandler = rest.NoWarnings{} // what Pod Security warns of is in the lines
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client of the API server: %w", err)
	}
	anyKind, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client of the API server: %w", err)
	}
	r := &reader{in, client, anyKind, o.CallInCluster, asked, &facts{now: time.Now(), namespace: in.Namespace(), installed: asked.installed}}
	if err := r.readVersion(ctx); err != nil {
		return nil, err
	}
	if asked.installed {
		r.f.plane, err = in.Find(ctx)
		if exit.Code(err) == exit.Unreachable {
			return nil, fmt.Errorf("%w; check without --installed says what an installation waits for", err)
		}
		if err != nil {
			return nil, err //nolint:wrapcheck // it is for users
		}
		r.f.namespace = r.f.plane.Namespace
		if asked.podNamespace == r.f.namespace || asked.podNamespace == metav1.NamespaceSystem {
			return nil, &mesh.FieldError{Field: "--" + flagPodNamespace, Value: asked.podNamespace, Allowed: "must be one whose pods may be injected: neither kube-system nor that of the control plane"}
		}
	}
	r.readCluster(ctx)
	if asked.nodes.asked {
		if err := r.tryNodes(ctx); err != nil {
			return nil, err
		}
	}
	return r.f, nil
}

// readVersion asks for the version of the API server, which each user may do: where that fails, all would.
func (r *reader) readVersion(ctx context.Context) error {
	body, err := r.client.Discovery().RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	if err != nil {
		return r.in.Explain("ask for the version of the API server", err) //nolint:wrapcheck // it is for users
	}
	var info version.Info
	if err := json.Unmarshal(body, &info); err != nil {
		return fmt.Errorf("decode the version of the API server: %w", err)
	}
	r.f.server = info.GitVersion
	return nil
}

// readCluster reads what is of the cluster.
func (r *reader) readCluster(ctx context.Context) {
	f, all := r.f, metav1.ListOptions{}
	var group errgroup.Group
	do := func(what func()) { group.Go(func() error { what(); return nil }) }
	do(func() {
		list, err := r.client.CoreV1().Nodes().List(ctx, all)
		f.nodes = readAs(r.in, "list nodes", cmp.Or(list, &corev1.NodeList{}).Items, err)
	})
	do(func() {
		list, err := r.client.CoreV1().Namespaces().List(ctx, all)
		f.namespaces = readAs(r.in, "list namespaces", cmp.Or(list, &corev1.NamespaceList{}).Items, err)
	})
	do(func() {
		pods, err := r.allPods(ctx)
		f.pods = readAs(r.in, "list pods", pods, err)
	})
	do(func() {
		list, err := r.client.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, all)
		f.mutating = readAs(r.in, "list webhook configurations", cmp.Or(list, &admissionv1.MutatingWebhookConfigurationList{}).Items, err)
	})
	do(func() {
		list, err := r.dynamic.Resource(definitionsResource).List(ctx, all)
		f.definitions = readAs(r.in, "list CustomResourceDefinitions", cmp.Or(list, &unstructured.UnstructuredList{}).Items, err)
	})
	do(func() { f.rights = r.askRights(ctx) })
	do(func() {
		if job, err := r.client.BatchV1().Jobs(f.namespace).Get(ctx, hookName, metav1.GetOptions{}); err == nil {
			f.hook = job
		}
	})
	do(func() {
		if list, err := r.client.CoreV1().Events(f.namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning}); err == nil {
			f.warnings = list.Items
		}
	})
	if f.installed {
		r.readInstallation(ctx, do)
	}
	_ = group.Wait() // nothing returns an error
}

var definitionsResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// allPods returns the pods of all namespaces.
func (r *reader) allPods(ctx context.Context) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return r.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, o)
	})
	pages.PageSize = podsPerPage
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		if p, ok := o.(*corev1.Pod); ok {
			pods = append(pods, *p)
		}
		return nil
	})
	return pods, err
}

// What checks need.
func (f *facts) needsNodes() error       { return f.nodes.err }
func (f *facts) needsPods() error        { return f.pods.err }
func (f *facts) needsDefinitions() error { return f.definitions.err }
func (f *facts) needsRights() error      { return f.rights.err }
func (f *facts) needsWebhooks() error    { return f.mutating.err }
func (f *facts) needsEndpoints() error   { return f.endpoints.err }
func (f *facts) needsTried() error       { return f.tried.err }
func (f *facts) needsWorkloads() error   { return cmp.Or(f.pods.err, f.namespaces.err) }

func (f *facts) needsAnswer() error {
	if f.admin.err != nil {
		return errTold
	}
	return nil
}

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

// Names of the chart's objects.
const (
	serviceName       = "sonde-cp" // name of the Service, the Deployment and the service account
	configurationName = "sonde"    // name of both webhook configurations
)

const (
	// requestsPerSecond limits requests to the API server, requestsAtOnce parallel ones: the check of rights sends about a
	// hundred.
	requestsPerSecond = 50
	requestsAtOnce    = 8
	// podsPerPage is the number of pods in one response of the API server.
	podsPerPage = 500
)

// read is the result of a read, or its error.
type read[T any] struct {
	is  T
	err error
}

// readAs returns the read of a value and an error, which names the action doing.
func readAs[T any](in *cluster.Cluster, doing string, is T, err error) read[T] {
	return read[T]{is, in.Explain(doing, err)}
}

// facts holds the input of all checks, read once.
type facts struct {
	now time.Time
	// namespace is the control plane's.
	namespace string
	installed bool
	// plane is the checked control plane, if it is installed.
	plane cluster.Plane

	server      string // version of the API server
	nodes       read[[]corev1.Node]
	namespaces  read[[]corev1.Namespace]
	pods        read[[]corev1.Pod]
	mutating    read[[]admissionv1.MutatingWebhookConfiguration]
	definitions read[[]unstructured.Unstructured]
	// rights are the caller's before an installation, and the control plane's after it.
	rights read[[]answer]
	// hook is the chart's first Job, nil if it does not exist or cannot be read. warnings are events in the control
	// plane's namespace. Both only explain pods that do not start.
	hook     *batchv1.Job
	warnings []corev1.Event
	// gates are the feature gates of kubelets.
	gates read[gates]
	// tried holds the results of Jobs on nodes, with --nodes.
	tried read[tried]

	// The other fields are read only with --installed.
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

// read reads all facts. Most facts contain their own error; read returns an error if nothing can be read.
func (o *Options) read(ctx context.Context, asked request) (*facts, error) {
	in, err := o.Cluster()
	if err != nil {
		return nil, err
	}
	config := rest.CopyConfig(in.Config)
	config.QPS, config.Burst = requestsPerSecond, requestsPerSecond
	config.WarningHandler = rest.NoWarnings{} // lines report the warnings of Pod Security
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client for the API server: %w", err)
	}
	anyKind, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client for the API server: %w", err)
	}
	r := &reader{
		in, client, anyKind, o.CallInCluster, asked,
		&facts{now: time.Now(), namespace: in.Namespace(), installed: asked.installed},
	}
	if err := r.readVersion(ctx); err != nil {
		return nil, err
	}
	if asked.installed {
		r.f.plane, err = in.Find(ctx)
		if exit.Code(err) == exit.Unreachable {
			return nil, fmt.Errorf("%w; run check without --installed to see what an installation waits for", err)
		}
		if err != nil {
			return nil, err //nolint:wrapcheck // it is for users
		}
		r.f.namespace = r.f.plane.Namespace
		if asked.podNamespace == r.f.namespace || asked.podNamespace == metav1.NamespaceSystem {
			return nil, &mesh.FieldError{Field: "--" + flagPodNamespace, Value: asked.podNamespace, Allowed: "must be a namespace whose pods can be injected: not kube-system, and not the control plane's"}
		}
	}
	r.readCluster(ctx)
	g, err := r.readGates(ctx)
	r.f.gates = readAs(r.in, "read the metrics of kubelets", g, err)
	if asked.nodes.asked {
		if err := r.tryNodes(ctx); err != nil {
			return nil, err
		}
	}
	return r.f, nil
}

// readVersion reads the version of the API server. Every user may, so if this fails, all other requests would fail,
// too.
func (r *reader) readVersion(ctx context.Context) error {
	body, err := r.client.Discovery().RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	if err != nil {
		return r.in.Explain("get version of the API server", err) //nolint:wrapcheck // it is for users
	}
	var info version.Info
	if err := json.Unmarshal(body, &info); err != nil {
		return fmt.Errorf("decode version of the API server: %w", err)
	}
	r.f.server = info.GitVersion
	return nil
}

// readCluster reads the objects that exist without an installation.
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
		warnings := metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning}
		if list, err := r.client.CoreV1().Events(f.namespace).List(ctx, warnings); err == nil {
			f.warnings = list.Items
		}
	})
	if f.installed {
		r.readInstallation(ctx, do)
	}
	_ = group.Wait() // no function returns an error
}

var definitionsResource = schema.GroupVersionResource{
	Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
}

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

// Functions for check.needs.
func (f *facts) needsNodes() error       { return f.nodes.err }
func (f *facts) needsPods() error        { return f.pods.err }
func (f *facts) needsDefinitions() error { return f.definitions.err }
func (f *facts) needsRights() error      { return f.rights.err }
func (f *facts) needsWebhooks() error    { return f.mutating.err }
func (f *facts) needsEndpoints() error   { return f.endpoints.err }
func (f *facts) needsTried() error       { return f.tried.err }
func (f *facts) needsWorkloads() error   { return cmp.Or(f.pods.err, f.namespaces.err) }

func (f *facts) needsRound() error {
	return cmp.Or(f.needsAnswer(), f.admin.is.round.err)
}

func (f *facts) needsAnswer() error {
	if f.admin.err != nil {
		return errTold
	}
	return nil
}

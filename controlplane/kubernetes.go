package controlplane

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sonde-mesh/sonde/admin"
	"github.com/sonde-mesh/sonde/agents/join"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller"
	"github.com/sonde-mesh/sonde/controller/access"
	"github.com/sonde-mesh/sonde/controller/freeze"
	"github.com/sonde-mesh/sonde/controller/podevents"
	"github.com/sonde-mesh/sonde/controller/restarts"
	"github.com/sonde-mesh/sonde/controller/secrets"
	"github.com/sonde-mesh/sonde/controller/source"
	"github.com/sonde-mesh/sonde/controller/tokenreview"
	"github.com/sonde-mesh/sonde/controller/webhookconfig"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/token"
	"github.com/sonde-mesh/sonde/internal/kubeconfig"
	"github.com/sonde-mesh/sonde/strict"
	"github.com/sonde-mesh/sonde/webhook"
)

// injectingWebhooks is the suffix of the names of the chart's webhooks that inject pods.
const injectingWebhooks = ".inject." + mesh.Group

// Requests per second to the API server; bursts may be twice as large. Requests for agents and for callers of the admin
// API have limits of their own: clients cause them, and neither must delay the other.
const (
	requestsPerSecond = 50
	reviewsPerSecond  = 200
	accessPerSecond   = 80
	// Reads of names that the webhook does not know: any of its clients may name objects that do not exist.
	anewPerSecond = 20
)

// cluster is the platform for a mesh on Kubernetes.
type cluster struct {
	cp         *ControlPlane
	config     *rest.Config
	client     kubernetes.Interface
	controller *controller.Controller
	loops      controller.Loops
	// webhookFiles watches the loop that rereads the files of the webhook's certificate.
	webhookFiles *heartbeat.Loop
	webhook      webhookconfig.Check
	anew         *rate.Limiter // limits the webhook's reads
}

var _ platform = (*cluster)(nil)

func newCluster(cp *ControlPlane) (*cluster, error) {
	config, err := cp.o.Kubernetes.Config()
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst, config.UserAgent = requestsPerSecond, 2*requestsPerSecond, "sonde-cp/"+cp.o.Version
	config.ContentType, config.AcceptContentTypes = "application/vnd.kubernetes.protobuf",
		"application/vnd.kubernetes.protobuf,application/json"
	c := &cluster{cp: cp, config: config, anew: rate.NewLimiter(anewPerSecond, anewPerSecond)}
	if c.client, err = c.clientFor(requestsPerSecond); err != nil {
		return nil, err
	}
	c.addChecks()
	return c, nil
}

// clientFor returns a client of the API server with a rate limit of its own.
func (c *cluster) clientFor(perSecond int) (kubernetes.Interface, error) {
	config := rest.CopyConfig(c.config)
	config.QPS, config.Burst = float32(perSecond), 2*perSecond
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client of the API server: %w", err)
	}
	return client, nil
}

func (c *cluster) means() means {
	namespace := c.cp.o.Kubernetes.Namespace
	return means{
		sources:        append(controller.Sources(), sourcePeers),
		explicitMeshes: true, servicesChecked: true,
		identity: identity.Options{Secrets: c.secrets(), Proxies: c.proxies},
		names:    serviceNames(c.cp.o.Kubernetes.Service, namespace),
	}
}

// secrets returns the store of keys, and of other secrets that the replicas share.
func (c *cluster) secrets() *secrets.Store {
	return secrets.New(c.client.CoreV1().Secrets(c.cp.o.Kubernetes.Namespace))
}

func (*cluster) emptied() bool { return false } // if there is no Mesh, its pods are not served

func (c *cluster) missing() error { return c.controller.Missing() }

func (*cluster) listened([]byte) error { return nil } // the Service defines the ports

func (*cluster) close() error { return nil }

// addChecks adds the checks of a control plane on Kubernetes.
func (c *cluster) addChecks() {
	c.loops = controller.Loops{
		Derive: c.cp.loop("cluster"), Status: c.cp.requestingLoop("status"), Warnings: c.cp.requestingLoop("warnings"),
		CatchUp: c.cp.requestingLoop("catch-up"), WebhookCA: c.cp.requestingLoop("webhook-ca"),
		PublishedCA: c.cp.requestingLoop("published-ca"),
		Restarts:    c.cp.loop("restarts"), RestartWrites: c.cp.requestingLoop("restart-writes"),
		Freeze: c.cp.requestingLoop("freeze"),
	}
	c.webhookFiles = c.cp.loop("webhook-certificate")
	c.checkPeers()
	c.checkStale()
	c.cp.ready(health.Check{
		Name: "webhook-certificate", Keep: keepWebhook, Timeout: askTimeout,
		Run: func(ctx context.Context) error { return c.webhook.Run(ctx) },
	})
}

func (c *cluster) lost() (time.Time, error) {
	loss := c.controller.Lost()
	return loss.Since, loss.Err
}

// Config returns the client configuration for the API server.
func (k *Kubernetes) Config() (*rest.Config, error) {
	if k.Kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, &mesh.FieldError{Field: "Kubernetes.Kubeconfig", Value: "", Err: err}
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", k.Kubeconfig)
	if err != nil {
		return nil, &mesh.FieldError{Field: "Kubernetes.Kubeconfig", Value: k.Kubeconfig,
			Err: kubeconfig.Explain(err, k.Kubeconfig)}
	}
	return config, nil
}

func (c *cluster) problems() []*adminv1.Problem { return c.controller.Objects.Shown() }

// serviceNames returns the names under which clients reach a Service.
func serviceNames(service, namespace string) []string {
	inNamespace := service + "." + namespace
	return []string{inNamespace, inNamespace + ".svc", inNamespace + ".svc.cluster.local"}
}

// connect creates the readers and writers of the cluster. The webhook answers from their caches.
func (c *cluster) connect() (connection, error) {
	o := c.cp.o
	certificate, err := c.webhookCertificate()
	if err != nil {
		return connection{}, err
	}
	c.webhook = c.webhookCheck(certificate)
	c.controller, err = controller.New(controller.Options{
		Config: c.config, Namespace: o.Kubernetes.Namespace, Replica: o.Kubernetes.Replica, Election: o.Kubernetes.Election,
		Secrets: c.secrets(), Builder: c.cp.pipeline.Builder, Recorded: c.cp.authority.Recorded, ProbesMode: o.ProbesMode,
		WebhookConfiguration: o.Kubernetes.WebhookConfiguration, Webhooks: injectingWebhooks,
		CA: certificate.ca, CAChanged: certificate.changed, ServingCA: c.cp.serving.CA,
		ServingCAChanged: c.cp.serving.Changed(),
		Peers:            c.cp.peers, Agents: func() controller.Agents { return c.cp.agents },
		Streams: c.cp.pipeline.Streaming, WhyNotInjected: c.whyNotInjected, InjectionLabels: c.injection().InjectionKeys(),
		GuardedLiveness: o.Kubernetes.GuardedLiveness, LivenessHold: o.Kubernetes.LivenessHold,
		FreezeMode: o.Kubernetes.FreezeMode,
		Loops:      c.loops, Logger: o.Logger, Registerer: c.cp.registry, Memory: o.Memory,
		Drains: source.Drains{
			Taints: o.Kubernetes.Drain.Taints, Conditions: o.Kubernetes.Drain.Conditions,
			MinServing: o.Kubernetes.Drain.MinServing, IgnoreNodes: o.Kubernetes.Drain.IgnoreNodes,
		},
	})
	if err != nil {
		return connection{}, err
	}
	c.cp.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sonde_store_problems",
		Help: "Problems in the objects of the store now, by severity: error or warning. On Kubernetes these are invalid Meshes and " +
			"Dataplanes. Services that only outbounds name are not counted.",
		ConstLabels: prometheus.Labels{"severity": "error"},
	}, func() float64 { return float64(len(c.problems())) }))
	c.cp.peers.ConnectFreeze(c.controller.Freeze)
	c.cp.peers.ConnectRevisions(revisions{c})
	authenticator, err := c.authenticator()
	if err != nil {
		return connection{}, err
	}
	access, err := c.access()
	if err != nil {
		return connection{}, err
	}
	server, err := webhook.NewServer(webhook.ServerOptions{
		Injection: *c.injection(), ControlPlaneCA: c.cp.serving.CA, Hold: c.controller.Restarts.Hold, TLS: certificate.tls,
		Connections: c.cp.places[usesWebhook],
		Namespace:   c.namespace, Meshes: c.meshes, Mode: c.mode, InUse: c.inUse, PodExists: c.podExists,
		ServiceIPs: c.serviceIPs, Log: o.Logger, Registerer: c.cp.registry,
	})
	if err != nil {
		return connection{}, err
	}
	serve := func(ctx context.Context) error { return server.Serve(ctx, c.cp.listeners.webhook) }
	tasks := slices.Concat(certificate.tasks, c.peerTasks(), []func(context.Context) error{c.controller.Run, serve})
	return connection{
		tokens: authenticator, access: access, tasks: tasks, servingWaits: c.servingWaits(),
		restarts: &restarts.Answers{Restarts: c.controller.Restarts, Replica: c.replica(), Others: c.cp.peers},
		frozen:   c.controller.Freeze.Held, freeze: &freeze.Answers{Freeze: c.controller.Freeze, Others: c.cp.peers},
		events:   &podevents.Events{Pod: c.controller.Cluster.PodNamed, Record: c.controller.Events.Record},
		podsAt:   strict.Pods{Client: c.client, Logger: o.Logger}.At,
		podState: c.controller.Cluster.StateOf, probesOf: c.controller.Cluster.ProbesOf,
	}, nil
}

// authenticator returns the authenticator of agents' tokens.
func (c *cluster) authenticator() (join.Authenticator, error) {
	client, err := c.clientFor(reviewsPerSecond)
	if err != nil {
		return nil, err
	}
	ofPods, err := tokenreview.New(tokenreview.Options{Reviews: client.AuthenticationV1().TokenReviews(),
		Pods: c.controller.TokenPods()})
	if err != nil {
		return nil, err
	}
	return tokens{own: c.cp.tokens, pods: ofPods}, nil
}

// access returns the authorizer for callers of the admin API with service-account tokens.
func (c *cluster) access() (admin.Access, error) {
	client, err := c.clientFor(accessPerSecond)
	if err != nil {
		return nil, err
	}
	return access.New(access.Options{Tokens: client.AuthenticationV1().TokenReviews(),
		Rights: client.AuthorizationV1().SubjectAccessReviews()})
}

func (c *cluster) reconfigure(l Live) {
	c.controller.Cluster.IgnoreNodes(l.IgnoreNodes)
	c.controller.Restarts.Configure(l.GuardedLiveness, l.LivenessHold)
	c.controller.Freeze.Configure(l.FreezeMode)
}

// tokens authenticates agents: in pods by service-account tokens, elsewhere by tokens of the control plane. The latter
// contain no service account and no UID, so they are never valid for a pod.
type tokens struct {
	own  *token.Issuer
	pods *tokenreview.Authenticator
}

// Authenticate implements join.Authenticator.
func (t tokens) Authenticate(ctx context.Context, text string) (identity.Subject, error) {
	if t.own.Signed(text) {
		return t.own.Authenticate(ctx, text)
	}
	return t.pods.Authenticate(ctx, text)
}

// proxies implements identity.Options.Proxies.
func (c *cluster) proxies(meshName string) (iter.Seq2[string, string], bool) {
	return c.cp.pipeline.Builder.View().Instances(meshName)
}

// Package controller connects the control plane to Kubernetes: what it reads there becomes the same objects that files have, and
// what it writes there, one replica alone writes. Each behaviour has a directory of its own.
package controller

import (
	"context"
	"errors"
	"log/slog"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/controller/catchup"
	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/leader"
	"github.com/sonde-mesh/sonde/controller/objects"
	"github.com/sonde-mesh/sonde/controller/source"
	"github.com/sonde-mesh/sonde/controller/warnings"
	"github.com/sonde-mesh/sonde/controller/webhookconfig"
)

// The sources of objects, in the order in which they win: a Dataplane that somebody writes never takes a pod's name.
const (
	SourceCluster = "cluster"
	SourceObjects = "objects"
)

// Sources lists the sources of objects.
func Sources() []string { return []string{SourceCluster, SourceObjects} }

// Builder receives the objects of all sources. *meshview.Builder implements it.
type Builder = source.Builder

// Options of a Controller.
type Options struct {
	// Config and Client of the API server. Required.
	Config *rest.Config
	Client kubernetes.Interface
	// Namespace of the control plane, and the name of this replica, such as its pod's. Required.
	Namespace, Replica string
	// Builder receives the objects. Required.
	Builder Builder
	// WebhookConfiguration is the name of the webhook configurations, and Webhooks the end of the names of the injecting webhooks in
	// them. CA returns the bundle that they need. Without a name there are none.
	WebhookConfiguration string
	Webhooks             string
	CA                   func() []byte
	// Logger. Required.
	Logger *slog.Logger
}

// Controller follows the cluster, and writes to it while this replica leads.
type Controller struct {
	// Cluster has the pods, Services and namespaces, Objects the Meshes and Dataplanes that people write.
	Cluster *source.Source
	Objects *objects.Objects
	// Events writes events.
	Events *events.Recorder

	o        Options
	warnings *warnings.Warnings
}

// New returns a Controller. Nothing is read before Run.
func New(o Options) (*Controller, error) {
	if o.Config == nil || o.Client == nil || o.Namespace == "" || o.Replica == "" || o.Builder == nil || o.Logger == nil {
		return nil, errors.New("controller: Config, Client, Namespace, Replica, Builder and Logger are required")
	}
	c := &Controller{o: o, Events: events.New(o.Client, o.Logger)}
	c.warnings = warnings.New(o.Client, c.Events, o.Logger)
	c.Cluster = source.New(source.Options{
		Client: o.Client, Builder: o.Builder, Name: SourceCluster, PodChanged: c.warnings.PodChanged, Logger: o.Logger,
	})
	var err error
	c.Objects, err = objects.New(objects.Options{Config: o.Config, Builder: o.Builder, Name: SourceObjects, Logger: o.Logger})
	return c, err
}

// Run runs until ctx ends, and then returns nil.
func (c *Controller) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, task := range []func(context.Context) error{c.Cluster.Run, c.Objects.Run, c.Events.Run, c.takePart} {
		group.Go(func() error { return task(ctx) })
	}
	return group.Wait()
}

// takePart runs what only one replica does.
func (c *Controller) takePart(ctx context.Context) error {
	tasks := []func(context.Context) error{c.Objects.RunStatus, c.Objects.RunDefaultMesh, c.warnings.Run}
	if c.o.WebhookConfiguration != "" {
		tasks = append(tasks,
			func(ctx context.Context) error {
				return webhookconfig.Run(ctx, webhookconfig.Options{
					Client: c.o.Client, Name: c.o.WebhookConfiguration, CA: c.o.CA, Logger: c.o.Logger,
				})
			},
			func(ctx context.Context) error {
				return catchup.Run(ctx, catchup.Options{Client: c.o.Client, Webhooks: c.o.Webhooks, Logger: c.o.Logger})
			})
	}
	return leader.Run(ctx, leader.Options{
		Client: c.o.Client, Namespace: c.o.Namespace, Identity: c.o.Replica, Tasks: tasks, Logger: c.o.Logger,
	})
}

package xds

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/pipeline"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
	"github.com/sonde-mesh/sonde/xds"
)

// serveBuilder runs the pipeline of the control plane, without a directory of files.
func serveBuilder(ctx context.Context, id *sondecp.Identity, w topology) error {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	first := make(chan struct{})
	pipeline := pipeline.New(pipeline.Options{
		View: meshview.Options{Sources: []string{"store"}, Applied: func(c meshview.Change) {
			if c.Before == nil {
				close(first)
			}
		}},
		XDS:    xds.Options{Logger: log, Registerer: prometheus.NewRegistry()},
		Logger: log,
	}, pipeline.Authorize)
	for _, o := range w.objects() {
		pipeline.Builder.Set("store", o)
	}
	pipeline.Builder.Synced("store")
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- pipeline.Run(ctx) }()
	<-first
	g := controlplane.NewServer(id.Credentials, 0, xds.ServerOptions()...)
	pipeline.XDS.Register(g)
	now := w.forms()
	err := serve(ctx, g, func(service int) error {
		pipeline.Builder.Set("store", w.turn(service, now))
		return nil
	})
	cancel()
	err = errors.Join(err, <-ended)
	pipeline.XDS.Wait()
	return err
}

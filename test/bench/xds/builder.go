package main

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/test/bench/controlplane"
	"github.com/sonde-mesh/sonde/xds"
)

// serveBuilder runs Sonde from the builder on, joined as in cmd/sonde-cp, without a folder of files.
func serveBuilder(ctx context.Context, r roleOptions) error {
	authority, err := controlplane.OpenAuthority(r.state)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	builder := meshview.NewBuilder(meshview.Options{Sources: []string{"store"}})
	translator := generator.NewTranslator(generator.TranslatorOptions{
		Report: func(err error) { log.Error("resources left out", "err", err) },
	})
	server := xds.NewServer(xds.Options{Logger: log, Registerer: prometheus.NewRegistry()}, translator, authorize)
	for _, o := range r.world.objects() {
		builder.Set("store", o)
	}
	builder.Synced("store")
	ctx, cancel := context.WithCancel(ctx)
	ended, first := make(chan error, 1), make(chan struct{})
	go func() {
		ended <- builder.Run(ctx, func(c meshview.Change) {
			desired, err := translator.Apply(c)
			if err != nil {
				log.ErrorContext(ctx, "resources left out", "err", err)
			}
			server.Publish(desired)
			if c.Before == nil {
				close(first)
			}
		})
	}()
	<-first
	g := newServer(authority, xds.ServerOptions()...)
	server.Register(g)
	now := r.world.forms()
	err = serveSubject(ctx, g, func(service int) error {
		builder.Set("store", r.world.turn(service, now))
		return nil
	})
	cancel()
	err = errors.Join(err, <-ended)
	server.Wait()
	return err
}

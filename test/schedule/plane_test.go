package schedule

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/pipeline"
	"github.com/sonde-mesh/sonde/store"
	"github.com/sonde-mesh/sonde/test/virtualplane"
	"github.com/sonde-mesh/sonde/xds"
)

// Sources of the builder: a directory of files, and a source that reports each change at once.
const (
	sourceFiles  = "files"
	sourceDirect = "direct"
)

// sendTimeout is how long the server waits for a client that does not read, as in package xds.
const sendTimeout = time.Minute

// drainTime is how long a replaced or removed listener serves its open connections.
const drainTime = 3 * time.Second

// plane is the pipeline of the control plane, with its sources.
type plane struct {
	*pipeline.Pipeline
	sim *simulation

	ctx     context.Context //nolint:containedctx // the control plane's, which a schedule can end
	stop    context.CancelFunc
	stages  *errgroup.Group
	streams sync.WaitGroup
}

func startPlane(ctx context.Context, s *simulation) *plane {
	p := &plane{sim: s}
	p.Pipeline = pipeline.New(pipeline.Options{
		View:   meshview.Options{Sources: []string{sourceFiles, sourceDirect}, Applied: p.applied},
		XDS:    xds.Options{DrainTime: drainTime},
		Logger: slog.New(slog.NewTextHandler(wrongs{s}, &slog.HandlerOptions{Level: slog.LevelError})),
	}, func(context.Context, string, *meshview.Proxy) error { return nil })
	dir := store.NewDir(store.DirOptions{
		Path: s.directory, Builder: p.Builder, Source: sourceFiles, Logger: slog.New(slog.NewTextHandler(details{s}, nil)), Watcher: virtualplane.NoWatcher,
	})

	p.ctx, p.stop = context.WithCancel(ctx)
	p.stages, ctx = errgroup.WithContext(p.ctx)
	p.stages.Go(func() error { return dir.Run(ctx) })
	p.stages.Go(func() error { return p.Run(ctx) })
	return p
}

func (p *plane) applied(c meshview.Change) {
	p.sim.Detail("view %d: services %v endpoints %v proxies %v", c.After.Generation, c.Services, c.Endpoints, c.Proxies)
}

// details writes the log of the store into the journal.
type details struct{ sim *simulation }

func (d details) Write(line []byte) (int, error) {
	d.sim.Detail("%s", bytes.TrimSpace(line))
	return len(line), nil
}

// wrongs fails the schedule if the pipeline logs an error, such as failed resource generation.
type wrongs struct{ sim *simulation }

func (o wrongs) Write(line []byte) (int, error) {
	o.sim.Wrong("%s", bytes.TrimSpace(line))
	return len(line), nil
}

// open connects a client.
func (p *plane) open(node string, protocol envoysim.Protocol) *pipe {
	stream := p.sim.newPipe(p.ctx, node)
	p.streams.Go(func() {
		defer stream.cancel()
		var err error
		if protocol == envoysim.SotW {
			err = p.XDS.StreamAggregatedResources(sotwEnd{pipe: stream})
		} else {
			err = p.XDS.DeltaAggregatedResources(deltaEnd{pipe: stream})
		}
		p.sim.Detail("stream of %s ends: %v", node, err)
	})
	return stream
}

// kill ends the control plane and all streams.
func (p *plane) kill() {
	p.stop()
	if err := p.stages.Wait(); err != nil {
		p.sim.Wrong("the control plane ended: %v", err)
	}
	p.streams.Wait()
	p.XDS.Wait()
	p.empty()
}

// empty checks that the server keeps nothing of ended streams.
func (p *plane) empty() {
	for _, status := range p.XDS.Status() {
		p.sim.Wrong("a stream of %s has not ended", status.Node)
	}
}

// Command stuckcp is a control plane with a mesh from files whose fan-out can be deadlocked, to test a supervisor: on
// SIGUSR1 it changes its mesh, and its log blocks on the message about the new view.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/internal/shutdown"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), shutdown.Signals()...)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "stuckcp:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("stuckcp", flag.ContinueOnError)
	directory := flags.String("directory", "", "`DIRECTORY` for the files of the mesh and the state")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *directory == "" {
		return errors.New("-directory: must not be empty")
	}
	files := filepath.Join(*directory, "mesh")
	if err := os.MkdirAll(files, 0o700); err != nil {
		return fmt.Errorf("make the store: %w", err)
	}
	log := &fullPipe{Handler: slog.NewJSONHandler(os.Stderr, nil)}
	cp, err := controlplane.New(controlplane.Options{
		Store: "dir:" + files, StateDir: filepath.Join(*directory, "state"), Logger: slog.New(log),
		AgentsPort: mesh.PortAgents, AdminPort: mesh.PortAdmin, HealthPort: mesh.PortHealth,
	})
	if err != nil {
		return err
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	defer signal.Stop(asked)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return cp.Run(ctx) })
	group.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-asked:
		}
		log.full.Lock() // never unlocked
		return os.WriteFile(filepath.Join(files, "shop.yaml"), []byte("type: Mesh\nname: shop\n"), 0o600)
	})
	return group.Wait()
}

// fullPipe is a log that blocks on messages about views while it is locked, like a full pipe. Other messages do not
// block.
type fullPipe struct {
	slog.Handler
	full sync.Mutex
}

// Enabled implements slog.Handler. Messages about views have level debug.
func (*fullPipe) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (p *fullPipe) Handle(ctx context.Context, r slog.Record) error { //nolint:gocritic // slog.Handler
	if r.Message == "published view" {
		p.full.Lock()
		defer p.full.Unlock()
	}
	if !p.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return p.Handler.Handle(ctx, r)
}

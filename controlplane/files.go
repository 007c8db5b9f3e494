package controlplane

import (
	"context"
	"errors"
	"time"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/store"
)

// sourceStore is the name of the directory of files for the builder.
const sourceStore = "store"

// files is a mesh from a directory of files, with a directory for keys and records.
type files struct {
	store *store.Dir
}

// useFiles makes the directories the platform of the control plane.
func (cp *ControlPlane) useFiles() error {
	state, err := store.OpenState(cp.o.StateDir)
	if err != nil {
		return err
	}
	records, err := store.NewRecords(state, cp.o.Logger, cp.registry)
	if err != nil {
		return errors.Join(err, state.Close())
	}
	f := &files{}
	loop := cp.loop("store")
	cp.ready(health.Check{Name: "state", Run: func(context.Context) error { return records.Check() }})
	cp.platform = platform{
		sources:  []string{sourceStore},
		identity: identity.Options{Secrets: state.Secrets(), Records: records},
		storage:  records,
		reach:    func(context.Context) error { return nil },
		connect: func() error {
			f.store = store.NewDir(store.DirOptions{
				Path: cp.o.storeDirectory(), Builder: cp.pipeline.Builder, Source: sourceStore, ProbesMode: cp.o.ProbesMode,
				Logger: cp.o.Logger, Registerer: cp.registry, LastGood: records, Loop: loop,
			})
			return nil
		},
		tasks:    []func(context.Context) error{func(ctx context.Context) error { return f.store.Run(ctx) }},
		problems: f.problems,
		missing:  func() error { return f.store.Missing() },
		lost:     func() (time.Time, error) { return f.store.Lost() },
		listened: func(addresses []byte) error { return records.Write(addressesFile, addresses) },
		close:    func() error { return errors.Join(records.Close(), state.Close()) },
	}
	return nil
}

func (f *files) problems() []*adminv1.Problem {
	var problems []*adminv1.Problem
	for _, p := range f.store.Problems() {
		problems = append(problems, &adminv1.Problem{
			File: p.File, Document: uint32(p.Document), Line: uint32(p.Line), Warning: p.Severity == store.Warning, Text: p.Err.Error(),
		})
	}
	return problems
}

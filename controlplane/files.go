package controlplane

import (
	"context"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/store"
)

// sourceStore is the name of the directory of files for the builder.
const sourceStore = "store"

// files is a mesh from a directory of files, with a directory for keys and records.
type files struct {
	state *store.State
	store *store.Dir
}

// useFiles makes the directories the platform of the control plane.
func (cp *ControlPlane) useFiles() error {
	state, err := store.OpenState(cp.o.StateDir)
	if err != nil {
		return err
	}
	f := &files{state: state}
	cp.platform = platform{
		sources:  []string{sourceStore},
		identity: identity.Options{Secrets: state.Secrets(), Records: state},
		storage:  state,
		reach:    func(context.Context) error { return nil },
		connect: func() error {
			f.store = store.NewDir(store.DirOptions{
				Path: cp.o.storeDirectory(), Builder: cp.pipeline.Builder, Source: sourceStore, Logger: cp.o.Logger, Registerer: cp.registry,
			})
			return nil
		},
		tasks:    []func(context.Context) error{func(ctx context.Context) error { return f.store.Run(ctx) }},
		problems: f.problems,
		check:    state.Check,
		listened: func(addresses []byte) error { return state.Write(addressesFile, addresses) },
		close:    state.Close,
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

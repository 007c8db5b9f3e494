package controlplane

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/replicas"
	"github.com/sonde-mesh/sonde/store"
)

// sourceStore is the builder's name for the directory of files.
const sourceStore = "store"

// files is the platform with a directory of files for objects, and a directory for keys and records.
type files struct {
	cp      *ControlPlane
	state   *store.State
	records *store.Records
	store   *store.Dir // once connected
	loop    *heartbeat.Loop
}

var _ platform = (*files)(nil)

// newFiles claims the directory for keys and records.
func newFiles(cp *ControlPlane) (*files, error) {
	state, err := store.OpenState(cp.o.StateDir)
	if err != nil {
		return nil, &mesh.FieldError{Field: "StateDir", Value: cp.o.StateDir, Err: err}
	}
	exposed, err := state.Exposed()
	if err != nil {
		cp.o.Logger.Warn("failed to check the modes of the state directory", "err", err)
	}
	if len(exposed) > 0 {
		cp.o.Logger.Warn("other users own or can read files of the state directory, its secrets may be exposed",
			"directory", cp.o.StateDir, "files", exposed)
	}
	records, err := store.NewRecords(state, cp.o.Logger, cp.registry)
	if err != nil {
		return nil, errors.Join(err, state.Close())
	}
	cp.ready(health.Check{Name: "state", Run: func(context.Context) error { return records.Check() }})
	cp.ready(health.Check{Name: "ca-files", Informational: true,
		Run: func(ctx context.Context) error { return cp.authority.CheckKept(ctx) }})
	return &files{cp: cp, state: state, records: records, loop: cp.loop("store")}, nil
}

func (f *files) means() means {
	return means{sources: []string{sourceStore}, identity: identity.Options{Secrets: f.state.Secrets(),
		Records: f.records}, storage: f.records}
}

func (f *files) reach(context.Context) error { return nil }

func (f *files) connect() (connection, error) {
	f.store = store.NewDir(store.DirOptions{
		Path: f.cp.o.storeDirectory(), Builder: f.cp.pipeline.Builder, Source: sourceStore, ProbesMode: f.cp.o.ProbesMode,
		Logger: f.cp.o.Logger, Registerer: f.cp.registry, LastGood: f.records, Recorded: f.cp.authority.Recorded,
		Loop: f.loop, Watcher: f.cp.o.watcher,
	})
	return connection{tokens: f.cp.tokens, tasks: []func(context.Context) error{f.runStore}}, nil
}

func (f *files) runStore(ctx context.Context) error {
	if err := f.store.Run(ctx); err != nil {
		return &mesh.FieldError{Field: "Store", Value: f.cp.o.Store, Err: err}
	}
	return nil
}

func (f *files) problems() []*adminv1.Problem {
	var problems []*adminv1.Problem
	for _, p := range f.store.Problems() {
		problems = append(problems, &adminv1.Problem{
			File: p.File, Document: uint32(p.Document), Line: uint32(p.Line), Warning: p.Severity == store.Warning,
			Text: p.Err.Error(), Object: describeKey(p.Object), Mesh: p.Object.Mesh, Since: timestamppb.New(p.Since),
		})
	}
	return problems
}

// describeKey returns KIND/NAME in lower case, "" for an unknown object.
func describeKey(k mesh.Key) string {
	if k.Kind == "" {
		return ""
	}
	return strings.ToLower(string(k.Kind)) + "/" + k.Name
}

func (*files) peers() (*replicas.Peers, error) { return nil, nil } //nolint:nilnil // one process alone claims the directory

func (*files) replica() string { return "" }

func (*files) leads() bool { return true }

func (*files) reconfigure(Live) {} // without Kubernetes there are no nodes or pods

func (f *files) missing() error { return f.store.Missing() }

func (f *files) lost() (time.Time, error) { return f.store.Lost() }

func (f *files) emptied() bool { return f.store.Empty() }

func (f *files) listened(addresses []byte) error { return f.records.Write(addressesFile, addresses) }

func (f *files) close() error { return errors.Join(f.records.Close(), f.state.Close()) }

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/store"
	"github.com/sonde-mesh/sonde/test/bench/rig"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
	"github.com/sonde-mesh/sonde/test/harness"
)

// directory is the store of the real program, with a file for each Dataplane.
type directory struct {
	path, aside string
	topology    topology
	forms       forms
}

func newDirectory(w topology, within string) (*directory, error) {
	f := &directory{path: filepath.Join(within, "store"), aside: within, topology: w, forms: w.forms()}
	if err := os.Mkdir(f.path, 0o755); err != nil {
		return nil, err
	}
	for _, o := range w.objects() {
		data, err := store.Encode(o)
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("%s-%s.yaml", o.Key().Kind, o.Key().Name)
		if err := os.WriteFile(filepath.Join(f.path, name), data, 0o644); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// change replaces the file of a Dataplane.
func (f *directory) change(service int) error {
	d := f.topology.turn(service, f.forms)
	data, err := store.Encode(d)
	if err != nil {
		return err
	}
	next := filepath.Join(f.aside, "next.yaml")
	if err := os.WriteFile(next, data, 0o644); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(f.path, fmt.Sprintf("%s-%s.yaml", d.Key().Kind, d.Name)))
}

// startSonde runs sonde-cp over a directory of the topology, with a state directory of its own.
func (s *session) startSonde(ctx context.Context) error {
	within, err := os.MkdirTemp(s.directory, "sonde-")
	if err != nil {
		return err
	}
	f, err := newDirectory(s.topology, within)
	if err != nil {
		return err
	}
	state := filepath.Join(within, "state")
	joined := map[mesh.ID]string{}
	for i := range s.topology.owners() {
		joined[proxyID(i)] = workload(i)
	}
	if err := errors.Join(sondecp.CopyState(s.stateDirectory(), state), sondecp.Join(state, joined)); err != nil {
		return err
	}
	program, err := rig.Start(ctx, within, s.program, "--store=dir:"+f.path, "--state-dir="+state, "--bind-address=127.0.0.1",
		"--agents-port=0", "--admin-port=0", "--health-port=0")
	if err != nil {
		return err
	}
	p := &process{Process: program}
	s.server, s.change, s.changed = p, f.change, func() error { return nil }
	err = harness.Poll(ctx, time.Minute, "sonde-cp", func(ctx context.Context) error {
		data, err := os.ReadFile(filepath.Join(state, "addresses.json"))
		if err != nil {
			return err
		}
		var at struct{ Agents, Health string }
		if err := json.Unmarshal(data, &at); err != nil {
			return err
		}
		p.address = at.Agents
		return sondecp.Ready(ctx, at.Health)
	})
	if err != nil {
		return errors.Join(err, p.Stop())
	}
	return nil
}

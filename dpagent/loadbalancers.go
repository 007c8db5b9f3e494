package dpagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/guard/worker"
	"github.com/sonde-mesh/sonde/dpagent/lb"
	"github.com/sonde-mesh/sonde/dpagent/workdir"
	"github.com/sonde-mesh/sonde/health"
)

// fileDrain stores the drain state for an agent that resumes after this one.
const fileDrain = "drain.json"

// newLB returns the server for load balancers, or nil if no port is configured for them.
func (a *Agent) newLB() *lb.Server {
	if a.o.LBHealthPort == 0 {
		return nil
	}
	return lb.New(lb.Options{
		Ready: a.servable, Begun: func() bool { return a.dir.Has(workdir.FileEnding) }, FromThisHost: a.checks.FromThisHost,
		Limit: a.limits.apply, Registerer: a.metrics, Loop: a.checks.Loop("load-balancers", loopLimit),
	})
}

// servable returns why the proxy is not ready, or nil. It ignores warnings, and the drain check, which load balancers
// get as a separate reason.
func (a *Agent) servable(ctx context.Context) error {
	var errs []error
	for _, r := range a.checks.Results(ctx, health.Readyz) {
		if r.Failed() && r.Name != checkDrain {
			errs = append(errs, fmt.Errorf("%s: %w", r.Name, r.Err))
		}
	}
	return errors.Join(append(errs, a.serves())...)
}

// serveLB opens the port for load balancers and serves it in group until ctx ends.
func (a *Agent) serveLB(ctx context.Context, group *errgroup.Group, envoy lb.Admin) error {
	if a.lb == nil {
		return nil
	}
	a.resumeDrain()
	l, err := a.o.Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(a.o.LBHealthPort)))
	if err != nil {
		return &mesh.FieldError{Field: "LBHealthPort", Value: strconv.Itoa(a.o.LBHealthPort), Err: err}
	}
	a.logger.Info("serving health for load balancers", "address", l.Addr().String())
	group.Go(func() error { return health.Serve(ctx, l, a.lb, health.Limits{Connections: a.places[usesLB]}) })
	group.Go(func() error {
		a.lb.Follow(ctx, envoy)
		return nil
	})
	return nil
}

// setDrain records why the control plane wants this proxy to get no new traffic. The state stays in effect without a
// session, and for the next agent if this one dies.
func (a *Agent) setDrain(d mesh.Drain) {
	if d.Terminating {
		a.setDeleted()
	}
	if a.lb == nil || !a.lb.Set(d) {
		return
	}
	if err := a.storeDrain(); err != nil {
		a.logger.Warn("failed to store the drain state", "err", err)
	}
	a.logger.Info("drain state", "draining", d.Applies(), "reason", d.String())
}

func (a *Agent) storeDrain() error {
	if !a.keepsEnvoy() {
		return nil
	}
	text, err := json.Marshal(a.lb.State())
	if err != nil {
		return err
	}
	return a.dir.Write(fileDrain, text)
}

// resumeDrain loads the drain state of a dead agent of the same guard.
func (a *Agent) resumeDrain() {
	if starts, _ := worker.Guarded(); starts <= 1 {
		if err := a.dir.Remove(fileDrain, workdir.FileEnding); err != nil { // the stored state is from an earlier guard
			a.logger.Warn("failed to remove the drain state of the previous agent", "err", err)
		}
		return
	}
	text, err := a.dir.Read(fileDrain)
	if errors.Is(err, fs.ErrNotExist) {
		return // the previous agent stored no drain state
	}
	var state lb.State
	if err == nil && json.Unmarshal(text, &state) != nil {
		err = mesh.ExplainJSON("", text, &state)
	}
	if err != nil {
		a.logger.Warn("drain state of the previous agent unusable", "err", err)
		return
	}
	a.lb.Resume(state)
}

// servesUntil returns until when the proxy keeps serving, so that load balancers notice its end: now without load
// balancers, or with LastToEnd.
func (a *Agent) servesUntil(now time.Time) time.Time {
	if a.lb == nil || a.o.LastToEnd {
		return now
	}
	if until := a.lb.Ending().Add(a.o.LBDrainTime); until.After(now) {
		return until
	}
	return now
}

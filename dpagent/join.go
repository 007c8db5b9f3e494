package dpagent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/dpagent/envoy"
	"github.com/sonde-mesh/sonde/dpagent/identity"
	"github.com/sonde-mesh/sonde/dpagent/retry"
	"github.com/sonde-mesh/sonde/dpagent/workdir"
)

// refusedDelay is the shortest delay after the control plane has refused the agent, for instance because of its token.
const refusedDelay = 5 * time.Second

// maxToken limits the token file, in bytes. Tokens are much shorter.
const maxToken = 64 << 10

// errDrained says that Drain was called before the agent had joined.
var errDrained = errors.New("told to drain")

// join tries to join until identity and bootstrap are in place, ctx ends, or a drain begins.
func (a *Agent) join(parent context.Context) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	watched := make(chan struct{})
	defer func() { cancel(nil); <-watched }()
	go func() {
		defer close(watched)
		select {
		case <-a.draining:
			cancel(errDrained)
		case <-ctx.Done():
		}
	}()
	backoff := retry.Backoff{}
	report := retry.Reporter{Logger: a.logger}
	for {
		err := a.joinOnce(ctx)
		if err == nil {
			a.joinErr.Store(nil)
			a.logger.Info("joined", "serial", a.identity.Leaf().SerialNumber.Text(16), "notAfter", a.identity.Leaf().NotAfter)
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		a.joinErr.Store(&err)
		wait := backoff.Next()
		level, msg := slog.LevelWarn, "not joined yet, the agent keeps trying"
		if isRefusal(err) {
			wait = max(wait, refusedDelay)
			level, msg = slog.LevelError, "control plane refuses this proxy, the agent keeps trying"
		}
		report.Failed(ctx, level, msg, err)
		if retry.Wait(ctx, wait) != nil {
			return context.Cause(ctx)
		}
	}
}

func (a *Agent) joinOnce(ctx context.Context) error {
	request, err := identity.NewRequest()
	if err != nil {
		return err
	}
	answer, err := a.callJoin(ctx, request.CSR)
	if err != nil {
		return err
	}
	if !json.Valid(answer.GetBootstrap()) {
		return errors.New("join: the bootstrap is not JSON")
	}
	if err := a.identity.Accept(request, answer.GetIdentity()); err != nil {
		return fmt.Errorf("join: %w", err)
	}
	return a.dir.Write(workdir.Bootstrap, answer.GetBootstrap())
}

func (a *Agent) callJoin(ctx context.Context, csr []byte) (*agentv1.JoinResponse, error) {
	token, err := os.ReadFile(a.o.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("read token: %w", err)
	}
	if len(token) > maxToken {
		return nil, fmt.Errorf("read token: %s has %d bytes, more than %d", a.o.TokenFile, len(token), maxToken)
	}
	answer, err := a.client.Join(ctx, &agentv1.JoinRequest{
		Mesh: a.o.Mesh, Name: a.o.Name, Token: string(bytes.TrimSpace(token)), Csr: csr, Version: a.version,
		ControlPlaneAddress: a.o.ControlPlane, DrainTime: durationpb.New(envoy.WholeSeconds(a.o.DrainTime)),
	})
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	return answer, nil
}

// renew gets a new certificate: with the current one, or with the token if that is expired or refused.
func (a *Agent) renew(ctx context.Context, csr []byte) (*agentv1.Identity, error) {
	invalid := a.identity.Valid(time.Now())
	if invalid == nil {
		answer, err := a.client.Renew(ctx, &agentv1.RenewRequest{Csr: csr})
		if err == nil {
			return answer.GetIdentity(), nil
		}
		if !isRefusal(err) {
			return nil, fmt.Errorf("renew: %w", err)
		}
		invalid = err
	}
	a.logger.Warn("certificate does not count any more, joining again", "err", invalid)
	answer, err := a.callJoin(ctx, csr)
	return answer.GetIdentity(), err
}

// isRefusal reports whether err is an answer that will not change by itself.
func isRefusal(err error) bool {
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument:
		return true
	}
	return false
}

func (a *Agent) addChecks(proxy *envoy.Envoy) {
	a.ready.Add("identity", func(context.Context) error {
		if why := a.joinErr.Load(); why != nil {
			return *why
		}
		return a.identity.Valid(time.Now())
	})
	a.ready.Add("envoy", proxy.Ready)
	a.ready.Add("drain", func(context.Context) error {
		select {
		case <-a.draining:
			return errors.New("this proxy drains")
		default:
			return nil
		}
	})
}

package dpagent

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/dpagent/envoy"
	"github.com/sonde-mesh/sonde/dpagent/identity"
	"github.com/sonde-mesh/sonde/dpagent/retry"
	"github.com/sonde-mesh/sonde/dpagent/workdir"
	"github.com/sonde-mesh/sonde/internal/run"
)

// refusedDelay is the minimum delay after the control plane has rejected the agent, for instance because of an invalid
// token.
const refusedDelay = 5 * time.Second

// errDrained means that Drain was called before the agent had joined.
var errDrained = errors.New("drain requested")

// join retries until the agent has its identity and Envoy's bootstrap, ctx ends, or a drain begins.
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
	stored := a.storedCertificate()
	for {
		err := a.joinOnce(ctx, stored)
		if err == nil {
			a.joinErr.Store(nil)
			a.logJoined()
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		a.joinErr.Store(&err)
		wait := backoff.Next()
		level, msg := slog.LevelWarn, "failed to join, retrying"
		if isRefusal(err) {
			wait = max(wait, refusedDelay)
			level, msg = slog.LevelError, "control plane rejects this proxy, retrying"
		}
		report.Failed(ctx, level, msg, err)
		if run.Sleep(ctx, wait) != nil {
			return context.Cause(ctx)
		}
	}
}

// resume continues the work of a dead agent, with its Envoy and certificate. It returns false if this agent has to
// join.
func (a *Agent) resume(proxy *envoy.Envoy) bool {
	if !proxy.Adopt() {
		if err := a.dir.Remove(fileInbounds); err != nil { // the stored report is about another Envoy
			a.logger.Warn("failed to remove the state of the previous agent", "err", err)
		}
		return false
	}
	if err := errors.Join(a.identity.Resume(), a.resumeInbounds()); err != nil {
		a.logger.Warn("state of the previous agent unusable, joining again", "err", err)
		return false
	}
	return true
}

// logJoined also logs when the token expires: after that, an agent on a restarted host cannot join.
func (a *Agent) logJoined() {
	leaf := a.identity.Leaf()
	log := a.logger.With("serial", leaf.SerialNumber.Text(16), "expires", leaf.NotAfter)
	if expires, err := a.token.Expires(); err == nil { // Watch reports the error
		log = log.With("tokenExpires", expires)
	}
	log.Info("joined")
}

func (a *Agent) joinOnce(ctx context.Context, stored *tls.Certificate) error {
	request, err := identity.NewRequest()
	if err != nil {
		return err
	}
	answer, err := a.askToJoin(ctx, request.CSR, stored)
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

// storedCertificate returns the certificate of a previous agent from the work directory, or nil if no usable one is
// stored.
func (a *Agent) storedCertificate() *tls.Certificate {
	stored, err := a.identity.Stored()
	switch {
	case err == nil:
		return stored
	case !errors.Is(err, fs.ErrNotExist):
		a.logger.Warn("certificate in the work directory unusable, joining with the token", "err", err)
	}
	return nil
}

// askToJoin joins with the stored certificate while it is valid. If the certificate is missing or rejected by the
// control plane, askToJoin uses the token.
func (a *Agent) askToJoin(ctx context.Context, csr []byte, stored *tls.Certificate) (*agentv1.JoinResponse, error) {
	if stored == nil || time.Now().After(stored.Leaf.NotAfter) {
		return a.joinWithToken(ctx, csr)
	}
	answer, refused := a.callJoin(ctx, csr, stored, "")
	if !isRefusal(refused) {
		return answer, refused
	}
	answer, err := a.joinWithToken(ctx, csr)
	if err != nil {
		return nil, fmt.Errorf("%w; with the certificate in the work directory: %w", err, refused)
	}
	a.logger.Warn("control plane rejected the certificate in the work directory, joined with the token", "err", refused)
	return answer, nil
}

func (a *Agent) joinWithToken(ctx context.Context, csr []byte) (*agentv1.JoinResponse, error) {
	text, err := a.token.Read()
	if err != nil {
		return nil, err
	}
	if text == "" {
		return nil, fmt.Errorf("read token: %s is empty", a.o.TokenFile)
	}
	return a.callJoin(ctx, csr, nil, text)
}

func (a *Agent) callJoin(
	ctx context.Context, csr []byte, certificate *tls.Certificate, token string,
) (*agentv1.JoinResponse, error) {
	answer, err := a.client.Join(ctx, certificate, &agentv1.JoinRequest{
		Mesh: a.o.Mesh, Name: a.o.Name, Token: token, Csr: csr, Version: a.version.Load(),
		ControlPlaneAddress: a.o.ControlPlane,
		DrainTime:           durationpb.New(envoy.WholeSeconds(a.o.DrainTime)), MemoryBytes: a.memory(), Instance: a.instance,
		Features: []string{agentv1.FeatureServingCA, agentv1.FeaturePlaintext},
	})
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	return answer, nil
}

// renew requests a new certificate with the current one, or with the token if the current one has expired or is
// rejected.
func (a *Agent) renew(ctx context.Context, csr []byte) (*agentv1.Identity, error) {
	invalid := a.identity.Valid(time.Now())
	if invalid == nil {
		answer, err := a.client.Renew(ctx, &agentv1.RenewRequest{Csr: csr})
		if err == nil {
			a.rejoins.Succeeded()
			return answer.GetIdentity(), nil
		}
		if !isRefusal(err) {
			return nil, fmt.Errorf("renew: %w", err)
		}
		invalid = err
	}
	a.rejoins.Failed(ctx, slog.LevelWarn, "certificate no longer accepted, joining again", invalid)
	answer, err := a.joinWithToken(ctx, csr)
	return answer.GetIdentity(), err
}

// isRefusal reports whether err is a rejection that a retry cannot change.
func isRefusal(err error) bool {
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument:
		return true
	}
	return false
}

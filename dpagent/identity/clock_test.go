package identity

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/controlplanetest"
)

// signedAt returns the response of a control plane whose clock is ahead.
func signedAt(t *testing.T, authority *controlplanetest.Authority, r *Request, ahead time.Duration) *agentv1.Identity {
	t.Helper()
	time.Sleep(ahead)
	leaf := authority.Sign(t, r.key.Public(), 12*time.Hour, mesh.ProxyDNSName("default", "web"), "spiffe://default.sonde.internal/workload/web")
	return &agentv1.Identity{CertificateChain: [][]byte{leaf}, Bundle: controlplanetest.BundleOf(authority)}
}

// The clock of a bubble only moves forward, so another bubble, further ahead, makes the certificate of the future.
func TestCertificateOfTheFuture(t *testing.T) {
	var authority *controlplanetest.Authority
	var request *Request
	var answer *agentv1.Identity
	kept := memory{}
	synctest.Test(t, func(t *testing.T) {
		authority = controlplanetest.NewAuthority(t)
		var err error
		if request, err = NewRequest(); err != nil {
			t.Fatal(err)
		}
		answer = signedAt(t, authority, request, 2*time.Hour)
		if err := New(kept, "default", "web").Accept(request, answer); err != nil {
			t.Fatal(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		const want = "the certificate is not valid before 2000-01-01T01:59:59Z, in 1h59m59s: the clock of this host is behind, or the control plane's clock was ahead"
		if err := New(memory{}, "default", "web").Accept(request, answer); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Accept() = %v, want %q", err, want)
		}
		// An identity accepted before the clock was set back stays in use, with a warning.
		i := New(kept, "default", "web")
		if _, err := i.Stored(); err != nil {
			t.Errorf("Stored() = %v", err)
		}
		if err := i.Resume(); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(i.Valid(time.Now()), i.Trust(controlplanetest.BundleOf(authority))); err != nil {
			t.Error(err)
		}
		if err := i.CheckClock(time.Now()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("CheckClock() = %v, want %q", err, want)
		}
		// It is renewed at once, since other proxies refuse it if the clock was ahead before.
		ctx, cancel := context.WithCancel(t.Context())
		r := NewRenewer(i, RenewerOptions{
			Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Renewed: cancel,
			Ask: func(_ context.Context, _ []byte) (*agentv1.Identity, error) { return nil, errors.New("not used") },
		})
		r.o.Ask = func(context.Context, []byte) (*agentv1.Identity, error) {
			cancel()
			return nil, errors.New("asked")
		}
		if err := r.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Run() = %v", err)
		}
		if asked := time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)); asked != 0 {
			t.Errorf("requested another one after %s, want at once", asked)
		}
		time.Sleep(2 * time.Hour)
		if err := i.CheckClock(time.Now()); err != nil {
			t.Errorf("CheckClock() once it is valid = %v", err)
		}
	})
}

// A new certificate that is rejected because of the clock is reported, and requested again every few minutes, since
// each costs a signature.
func TestRefusedRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		authority := controlplanetest.NewAuthority(t)
		request, err := NewRequest()
		if err != nil {
			t.Fatal(err)
		}
		i := New(memory{}, "default", "web")
		if err := i.Accept(request, signedAt(t, authority, request, 0)); err != nil {
			t.Fatal(err)
		}
		var asked atomic.Int32
		corrected := time.Now().Add(time.Hour) // the control plane's clock
		r := NewRenewer(i, RenewerOptions{
			Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Renewed: func() {},
			Ask: func(_ context.Context, der []byte) (*agentv1.Identity, error) {
				asked.Add(1)
				csr, err := x509.ParseCertificateRequest(der)
				if err != nil {
					return nil, err
				}
				template := *i.Leaf()
				template.NotBefore = time.Now()
				if time.Now().Before(corrected) {
					template.NotBefore = template.NotBefore.Add(3 * time.Hour)
				}
				leaf, err := x509.CreateCertificate(rand.Reader, &template, authority.Cert, csr.PublicKey, authority.Key)
				return &agentv1.Identity{CertificateChain: [][]byte{leaf}, Bundle: controlplanetest.BundleOf(authority)}, err
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		r.Now()
		time.Sleep(time.Hour)
		synctest.Wait()
		before := asked.Load()
		if before < 12 || before > 30 {
			t.Errorf("requested %d times within an hour, want finally every five minutes", before)
		}
		if err := i.CheckClock(time.Now()); err == nil || !strings.Contains(err.Error(), "a new certificate is rejected: the certificate is not valid before 2000-01-01T0") {
			t.Errorf("CheckClock() = %v, want a rejected certificate", err)
		}
		time.Sleep(refusedBackoff)
		synctest.Wait()
		if err := i.CheckClock(time.Now()); err != nil || asked.Load() != before+1 {
			t.Errorf("CheckClock() = %v, requested %d times more, want one accepted certificate", err, asked.Load()-before)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run() = %v", err)
		}
	})
}

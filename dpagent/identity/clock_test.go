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

// signedAt returns an answer of a control plane whose clock has that time.
func signedAt(t *testing.T, authority *controlplanetest.Authority, r *Request, ahead time.Duration) *agentv1.Identity {
	t.Helper()
	time.Sleep(ahead)
	leaf := authority.Sign(t, r.key.Public(), 12*time.Hour, mesh.ProxyDNSName("default", "web"), "spiffe://default.sonde.internal/workload/web")
	return &agentv1.Identity{CertificateChain: [][]byte{leaf}, Bundle: controlplanetest.BundleOf(authority)}
}

// The bubble's clock only goes on, so a certificate of the future is one that another bubble, further on, has made.
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
		const want = "the certificate is not valid before 2000-01-01T01:59:59Z, in 1h59m59s: the clock of this host is behind, or that of the control plane was ahead"
		if err := New(memory{}, "default", "web").Accept(request, answer); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Accept() = %v, want %q", err, want)
		}
		// What was accepted before the clock was set back stays in use, and is told.
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
		// It is renewed at once: if the clock was ahead before, others refuse it.
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
			t.Errorf("asked for another after %s, want at once", asked)
		}
		time.Sleep(2 * time.Hour)
		if err := i.CheckClock(time.Now()); err != nil {
			t.Errorf("CheckClock() once it is valid = %v", err)
		}
	})
}

// A new certificate that is refused for this clock is told, and asked for again every few minutes: each is signed.
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
			t.Errorf("asked %d times within an hour, want every five minutes in the end", before)
		}
		if err := i.CheckClock(time.Now()); err == nil || !strings.Contains(err.Error(), "a new certificate is refused: the certificate is not valid before 2000-01-01T0") {
			t.Errorf("CheckClock() = %v, want that a new one is refused", err)
		}
		time.Sleep(refusedBackoff)
		synctest.Wait()
		if err := i.CheckClock(time.Now()); err != nil || asked.Load() != before+1 {
			t.Errorf("CheckClock() = %v, asked %d times more, want one that is accepted", err, asked.Load()-before)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run() = %v", err)
		}
	})
}

// Package probe reads, once, whether the API server of a cluster answers, and what the leases of its nodes say.
package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/partition"
)

const (
	// pageSize is how many objects an answer has.
	pageSize = 500
	// maxAnswer is how many bytes an answer may have: what is watched must not fill the memory of who watches.
	maxAnswer = 128 << 20
)

// Error is why a probe has failed.
type Error struct {
	// Cause is that of the verdict which follows.
	Cause partition.Cause
	// RetryAfter is how long the API server asks to be left alone, 0 if it does not say.
	RetryAfter time.Duration
	Err        error
}

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Explain returns an error of a request to the API server as an Error.
func Explain(what string, err error) *Error {
	e := &Error{Cause: partition.APIServerAway, Err: fmt.Errorf("%s: %w", what, err)}
	if _, is := errors.AsType[*tls.CertificateVerificationError](err); is { // there is one who answers, and it is not known who: the kubeconfig may be old
		e.Cause = partition.Unreadable
		return e
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return e
	}
	switch code := status.Status().Code; {
	case code == http.StatusTooManyRequests:
		e.Cause = partition.Throttled
		if seconds, says := apierrors.SuggestsClientDelay(err); says {
			e.RetryAfter = time.Duration(seconds) * time.Second
		}
	case code >= http.StatusBadRequest && code < http.StatusInternalServerError:
		e.Cause = partition.Unreadable
	}
	return e
}

// Probe is one probe. It has connections of its own, which do not outlive a request: one that broke unnoticed must not be taken for an API server
// that is away.
type Probe struct {
	config    *rest.Config
	transport *http.Transport
	client    *http.Client
}

// New returns a Probe of the API server of config, which is not changed. Close ends it.
func New(config *rest.Config) (*Probe, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1 // the API server says when it gets too many
	config.WarningHandler = rest.NoWarnings{}
	secured, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, &Error{Cause: partition.Unreadable, Err: fmt.Errorf("make client: %w", err)}
	}
	t := &http.Transport{TLSClientConfig: secured, DisableKeepAlives: true, DialContext: config.Dial, TLSHandshakeTimeout: config.Timeout}
	wrapped, err := rest.HTTPWrappersForConfig(config, limited{t})
	if err != nil {
		return nil, &Error{Cause: partition.Unreadable, Err: fmt.Errorf("make client: %w", err)}
	}
	return &Probe{config: config, transport: t, client: &http.Client{Transport: wrapped}}, nil
}

// limited limits the size of answers.
type limited struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := l.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = http.MaxBytesReader(nil, answer.Body, maxAnswer)
	}
	return answer, err
}

// Close ends what a probe has left.
func (p *Probe) Close() { p.transport.CloseIdleConnections() }

// APIServer returns nil if the API server answers.
func (p *Probe) APIServer(ctx context.Context) error {
	c := rest.CopyConfig(p.config)
	c.APIPath, c.NegotiatedSerializer = "/", codecs
	client, err := rest.UnversionedRESTClientForConfigAndClient(c, p.client)
	if err == nil {
		err = client.Get().AbsPath("/version").MaxRetries(0).Do(ctx).Error()
	}
	if err != nil {
		return Explain("ask the API server for its version", err)
	}
	return nil
}

package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sonde-mesh/sonde/partition"
)

// Error is the error of a probe.
type Error struct {
	// Cause is the cause of the resulting verdict.
	Cause partition.Cause
	// RetryAfter is the delay requested by the API server, 0 for none.
	RetryAfter time.Duration
	Err        error
}

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Explain converts an error of a request to the API server to an Error.
func Explain(what string, err error) *Error {
	e := &Error{Cause: partition.APIServerAway, Err: fmt.Errorf("%s: %w", what, err)}
	// a server responds, but its certificate is not trusted: the kubeconfig may be old
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
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

// errUnreadable replaces an error that may quote the response.
var errUnreadable = errors.New("the response is not from an API server")

// explainAnswer converts an error of a request to a watched API server to an Error. The Error contains no text of the
// response, since users without access to that server can read conditions.
func explainAnswer(what string, err error) *Error {
	e := Explain(what, err)
	shown, readable := withoutAnswer(err)
	if !readable {
		e.Cause = partition.Unreadable
	}
	e.Err = fmt.Errorf("%s: %w", what, shown)
	return e
}

// withoutAnswer returns the part of a request's error that may be shown, and whether the response, if there is one, was
// readable.
func withoutAnswer(err error) (shown error, readable bool) {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code := int(status.Status().Code)
		return fmt.Errorf("HTTP %d %s", code, http.StatusText(code)), true
	}
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return fmt.Errorf("the response has more than %d bytes", large.Limit), false
	}
	for _, ok := range []error{errRedirect, errNoVersion, errTooMany} {
		if errors.Is(err, ok) {
			return ok, false
		}
	}
	if untrusted, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return untrusted, true
	}
	for _, ok := range []error{context.DeadlineExceeded, context.Canceled, io.ErrUnexpectedEOF, io.EOF} {
		if errors.Is(err, ok) {
			return ok, true
		}
	}
	if broken, ok := errors.AsType[net.Error](err); ok {
		if outer, ok := errors.AsType[*url.Error](err); !ok {
			return broken, true
		} else if inner, ok := errors.AsType[net.Error](outer.Err); ok {
			return inner, true
		}
		return errUnreadable, true // malformed HTTP, which the error quotes
	}
	return errUnreadable, false
}

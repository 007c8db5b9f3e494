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

// errUnreadable stands for an error that may quote the answer.
var errUnreadable = errors.New("the answer is not what an API server answers")

// explainAnswer returns an error of a request to a watched API server as an Error whose text has nothing of the answer: conditions show it to others than those
// who may ask that server.
func explainAnswer(what string, err error) *Error {
	e := Explain(what, err)
	shown, readable := withoutAnswer(err)
	if !readable {
		e.Cause = partition.Unreadable
	}
	e.Err = fmt.Errorf("%s: %w", what, shown)
	return e
}

// withoutAnswer returns what may be shown of an error of a request, and whether the answer, if there was one, could be read.
func withoutAnswer(err error) (shown error, readable bool) {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code := int(status.Status().Code)
		return fmt.Errorf("HTTP %d %s", code, http.StatusText(code)), true
	}
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return fmt.Errorf("the answer has more than %d bytes", large.Limit), false
	}
	for _, known := range []error{errRedirect, errNoVersion, errTooMany} {
		if errors.Is(err, known) {
			return known, false
		}
	}
	if untrusted, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return untrusted, true
	}
	for _, known := range []error{context.DeadlineExceeded, context.Canceled, io.ErrUnexpectedEOF, io.EOF} {
		if errors.Is(err, known) {
			return known, true
		}
	}
	if broken, ok := errors.AsType[net.Error](err); ok {
		if outer, ok := errors.AsType[*url.Error](err); !ok {
			return broken, true
		} else if inner, ok := errors.AsType[net.Error](outer.Err); ok {
			return inner, true
		}
		return errUnreadable, true // HTTP that is malformed, which such an error quotes
	}
	return errUnreadable, false
}

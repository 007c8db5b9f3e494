package probe

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
)

// verdict is what the kubelet makes of a check.
type verdict uint8

// The kubelet's verdicts. Only Failure counts against a container.
const (
	// errored is discarded by the kubelet: nobody knows.
	errored verdict = iota
	// success is a pass.
	success
	// warning is a pass that the kubelet reports.
	warning
	// failure is a fail.
	failure
	verdicts // how many there are
)

// String returns the verdict as it is in metrics and logs.
func (v verdict) String() string {
	return [verdicts]string{"errored", "success", "warning", "failure"}[v]
}

// Result of one check.
type result struct {
	verdict verdict
	// status to tell the kubelet with a Failure, 0 if there is none of the application's that says it.
	status int
	// reason for people: never a word of the application's own.
	reason string
}

// maxReason is far more than a reason has.
const maxReason = 512

// failureOf is a check whose error the kubelet takes for a Failure. What the agent itself lacks is no fault of the
// application's.
func failureOf(err error) result {
	if isAgentFault(err) {
		return result{verdict: errored, reason: "the agent cannot check: " + reason(err)}
	}
	return result{verdict: failure, reason: reason(err)}
}

// isAgentFault tells what is wrong with the agent, and not with whom it asks.
func isAgentFault(err error) bool {
	for _, errno := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL, syscall.EPERM, syscall.EACCES,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// reason returns the text of err without what it quotes: net/http quotes what the application sent.
func reason(err error) string {
	var outer *url.Error
	for errors.As(err, &outer) { // holds the URL, which may be that of a redirect
		err = outer.Err
	}
	return cutAtQuote(err.Error())
}

func cutAtQuote(text string) string {
	text, _, _ = strings.Cut(text, `"`)
	text = strings.TrimRight(text, " :,;=(")
	return text[:min(len(text), maxReason)]
}

// Answer that the kubelet reads as Errored: a body that ends before it is complete.
const erroredLength = 100

// warningLocation is a host that is none of the pod's: the kubelet does not follow there, which is a Warning.
const warningLocation = "http://warning.sonde.invalid/"

// write answers a probe so that the kubelet comes to the verdict.
func (r result) write(w http.ResponseWriter) {
	header := w.Header()
	header["Content-Type"] = plainText
	header["X-Content-Type-Options"] = noSniff
	status, body := http.StatusOK, r.reason
	switch r.verdict {
	case success:
		body = "success"
	case warning:
		status = http.StatusFound
		header["Location"] = []string{warningLocation}
	case failure:
		status = http.StatusServiceUnavailable
		if r.status >= http.StatusBadRequest {
			status = r.status
		}
	default:
		// Nothing may be after this: the headers have to go out, and the connection to end, by a return.
		header["Content-Length"] = []string{strconv.Itoa(erroredLength)}
		w.WriteHeader(status)
		body = "errored: " + body
		_, _ = w.Write([]byte(body[:min(len(body), erroredLength-1)])) // the caller is gone: nobody to tell
		return
	}
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body + "\n")) // as above
}

// Values of headers, made once.
var (
	plainText = []string{"text/plain; charset=utf-8"}
	noSniff   = []string{"nosniff"}
)

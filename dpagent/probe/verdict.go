package probe

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sonde-mesh/sonde/internal/cut"
)

// verdict is the kubelet's verdict of a check.
type verdict uint8

// The kubelet's verdicts. Only a failure counts against a container.
const (
	errored  verdict = iota // the check yielded no verdict: the kubelet discards it
	success                 // the check passed
	warning                 // the check passed, and the kubelet reports a warning
	failure                 // the check failed
	verdicts                // the number of verdicts
)

// String returns the verdict for metrics and logs.
func (v verdict) String() string {
	return [verdicts]string{"errored", "success", "warning", "failure"}[v]
}

// result is the result of a check.
type result struct {
	verdict verdict
	// status of the application's response, for a failure; 0 without a response.
	status int
	// stopped is the application's response, for a redirect that is not followed.
	stopped stoppedRedirect
	// class of the reason, for any verdict but success.
	class Class
	// reason is human-readable. It never contains text from the application.
	reason string
	// rpc is the response to a gRPC call that did not succeed.
	rpc rpcAnswer
}

// rpcAnswer is the response to a gRPC client: a status if the code is OK and the class of the result is NotServing,
// otherwise a code and a text.
type rpcAnswer struct {
	status healthpb.HealthCheckResponse_ServingStatus
	code   codes.Code
	text   string // never from the application
}

// Class groups reasons: one of a few words by which failures are counted together.
type Class string

// The classes of reasons.
const (
	ConnectionRefused Class = "ConnectionRefused"
	Timeout           Class = "Timeout"
	HTTPStatus        Class = "HTTPStatus"
	NotServing        Class = "NotServing"
	Redirect          Class = "Redirect"
	Failed            Class = "Failed" // any other reason
	AgentFault        Class = "Agent"  // the agent could not check
	Silent            Class = "Silent" // the helper for exec probes does not answer
	Held              Class = "Held"   // a failure of a guarded liveness probe without a grant
)

// classOf returns the class of an error of a connection or a request.
func classOf(err error) Class {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return ConnectionRefused
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return Timeout
	default:
		return Failed
	}
}

// maxReason limits a reason, in bytes.
const maxReason = 512

// failureOf returns the result of a check with an error that is a failure for the kubelet. It is Errored if the agent
// caused the error, not the application.
func failureOf(err error) result {
	if IsAgentFault(err) {
		return result{verdict: errored, class: AgentFault, reason: "the agent cannot check: " + reason(err)}
	}
	return result{verdict: failure, class: classOf(err), reason: reason(err)}
}

// IsAgentFault reports whether the agent caused an error, such as a lack of file descriptors, and not the application.
func IsAgentFault(err error) bool {
	for _, errno := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL, syscall.EPERM, syscall.EACCES,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// reason returns the text of err without quoted text, since net/http quotes what the application has sent.
func reason(err error) string {
	var outer *url.Error
	for errors.As(err, &outer) { // drop the URL, which may come from a redirect
		err = outer.Err
	}
	return cutAtQuote(err.Error())
}

func cutAtQuote(text string) string {
	text, _, _ = strings.Cut(text, `"`)
	text = strings.TrimRight(text, " :,;=(")
	return cut.Text(text, maxReason)
}

// erroredLength is the Content-Length of an Errored response. The body is shorter, which the kubelet treats as an
// error.
const erroredLength = 100

// write answers a probe request that was sent to host, so that the kubelet reaches the same verdict.
func (r result) write(w http.ResponseWriter, host string) {
	header := w.Header()
	header["Content-Type"] = plainText
	header["X-Content-Type-Options"] = noSniff
	status, body := http.StatusOK, r.reason
	switch r.verdict {
	case success:
		body = "success"
	case warning:
		r.stopped.write(w, host)
		return
	case failure:
		status = failureStatus(r.status)
	default:
		// The handler must return right after this, so that the headers are sent and the connection is closed.
		header["Content-Length"] = []string{strconv.Itoa(erroredLength)}
		w.WriteHeader(status)
		body = "errored: " + body
		_, _ = w.Write([]byte(body[:min(len(body), erroredLength-1)])) // an error means that the caller has disconnected
		return
	}
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body + "\n")) // as above
}

// failureStatus returns the status that makes the kubelet fail the probe: the application's status, unless net/http
// cannot send it.
func failureStatus(status int) int {
	const first, last = http.StatusBadRequest, 999
	if status == http.StatusSwitchingProtocols || status >= first && status <= last {
		return status
	}
	return http.StatusServiceUnavailable
}

// Values of headers, allocated once.
var (
	plainText = []string{"text/plain; charset=utf-8"}
	noSniff   = []string{"nosniff"}
)

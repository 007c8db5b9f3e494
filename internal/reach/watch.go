package reach

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// lookupTimeout bounds the check of whether a name resolves.
const lookupTimeout = 2 * time.Second

// Kind is a class of errors that a client may want to distinguish.
type Kind int

// The kinds.
const (
	// Other is an error that the control plane itself returned.
	Other Kind = iota
	// Unreachable means that no server answered.
	Unreachable
	// Mistrusted means that the server is not the control plane that the client trusts.
	Mistrusted
	// WrongPort means that the address has another port of the control plane.
	WrongPort
)

// Error is the human-readable failure of a call. status.Code returns its code.
type Error struct {
	Kind Kind

	text   string
	status *status.Status
	cause  error // may be nil
}

// Error implements error.
func (e *Error) Error() string { return e.text }

// Unwrap returns the failure below gRPC, or nil.
func (e *Error) Unwrap() error { return e.cause }

// GRPCStatus returns the status.
func (e *Error) GRPCStatus() *status.Status { return e.status }

// Watch remembers why the connections of a client failed, since gRPC returns only a text for developers. It is safe for
// concurrent use.
type Watch struct {
	// Service is the service that the client needs, and Address is the address that it calls.
	Service Service
	Address string
	// CA names the source of the trusted CAs in errors. Default --ca-cert-file.
	CA string

	mu              sync.Mutex
	dial, handshake error
	dialed          bool
}

// Dialed records the result of connecting.
func (w *Watch) Dialed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dial, w.handshake, w.dialed = err, nil, true
}

// Handshaken records the result of a TLS handshake.
func (w *Watch) Handshaken(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handshake = err
}

// Explain returns a human-readable error of a call: an *Error if err has a gRPC status, possibly wrapped.
func (w *Watch) Explain(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	w.mu.Lock()
	dial, handshake, dialed := w.dial, w.handshake, w.dialed
	w.mu.Unlock()
	e := &Error{status: s, text: Words(err)}
	switch {
	case s.Code() == codes.Unavailable && handshake != nil:
		e.cause = handshake
		e.Kind, e.text = w.explainHandshake(handshake)
	case s.Code() == codes.Unavailable && dial != nil:
		e.Kind, e.text, e.cause = Unreachable, w.explainDial(dial), dial
	case s.Code() == codes.Unavailable && !dialed:
		if unresolved := lookup(w.Address); unresolved != nil {
			e.Kind, e.text, e.cause = Unreachable, w.explainDial(unresolved), unresolved
		}
	case s.Code() == codes.DeadlineExceeded:
		e.Kind, e.text = Unreachable, fmt.Sprintf("the control plane at %s did not answer in time", w.Address)
	case s.Code() == codes.Unimplemented:
		e.Kind, e.text = w.explainUnimplemented(s)
	}
	return e
}

// lookup returns why the host of an address does not resolve, or nil: gRPC's resolver only reports that there is no
// address.
func lookup(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	_, err = net.DefaultResolver.LookupHost(ctx, host)
	return err
}

func (w *Watch) explainDial(err error) string {
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return fmt.Sprintf("no control plane at %s: the name %q does not resolve: %s", w.Address, dns.Name, dns.Err)
	}
	return fmt.Sprintf("no control plane at %s: %v", w.Address, err)
}

func (w *Watch) explainHandshake(err error) (Kind, string) {
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return WrongPort, fmt.Sprintf("%s does not speak TLS, as the control plane's port for %s: %s",
			w.Address, Health.Name, w.Service.where())
	}
	if verification, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		text := fmt.Sprintf("the control plane at %s is not the one that %s names: %v",
			w.Address, cmp.Or(w.CA, "--ca-cert-file"), verification.Err)
		// The webhook's certificate may be from another CA.
		if _, port, _ := net.SplitHostPort(w.Address); Usual(port) != nil && *Usual(port) != w.Service {
			text += fmt.Sprintf("; %s is usually the port for %s: %s", port, Usual(port).Name, w.Service.where())
		}
		return Mistrusted, text
	}
	return Unreachable, fmt.Sprintf("no TLS connection to the control plane at %s: %s", w.Address, Words(err))
}

// explainUnimplemented finds out which server answered with Unimplemented: another gRPC server of the control plane, or
// an HTTP server.
func (w *Watch) explainUnimplemented(s *status.Status) (Kind, string) {
	found := Agents
	switch {
	case strings.Contains(s.Message(), "unexpected HTTP status code"):
		found = Webhook
	case !strings.HasPrefix(s.Message(), "unknown service"):
		return Other, s.Message()
	case w.Service == Agents:
		found = Admin
	}
	return WrongPort, fmt.Sprintf("%s is the control plane's port for %s: %s", w.Address, found.Name, w.Service.where())
}

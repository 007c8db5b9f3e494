// Package wire is the protocol between the CNI plugin and its daemon on a Unix socket: one request and one answer per
// connection, each a JSON object.
package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// Bounds of a message and of a connection.
const (
	maxBytes = 16 << 10
	// maxReason bounds the text of an error, in bytes. Each may need six in JSON.
	maxReason = 2 << 10
	// Timeout bounds a request from its first byte to its answer. The kubelet waits for minutes.
	Timeout = 20 * time.Second
	// dialTimeout is short: a socket without a daemon refuses connections at once.
	dialTimeout = 2 * time.Second
)

// Verb is the CNI command of a request.
type Verb string

// Verbs for the daemon. DEL and GC need no request: the rules of a pod end with its network namespace.
const (
	Add   Verb = "ADD"
	Check Verb = "CHECK"
)

// Request is about one sandbox of a pod.
type Request struct {
	Verb        Verb   `json:"verb"`
	ContainerID string `json:"containerID"`
	// NetNS is the path of the network namespace on the node.
	NetNS     string `json:"netns"`
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	// UID is "" if the container runtime does not report it.
	UID string `json:"uid,omitempty"`
}

// Answer is the response to a Request.
type Answer struct {
	// Error is why the pod must not start; "" for none.
	Error string `json:"error,omitempty"`
}

// ErrAway means that no daemon has responded.
var ErrAway = errors.New("the daemon of sonde-cni does not respond")

// Ask sends a request, and returns the daemon's answer. Errors wrap ErrAway.
func Ask(ctx context.Context, socket string, r Request) (a Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "unix", socket)
	if err != nil {
		return Answer{}, fmt.Errorf("%w: %w", ErrAway, err)
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return Answer{}, fmt.Errorf("%w: %w", ErrAway, err)
	}
	if err := write(conn, r); err != nil {
		return Answer{}, fmt.Errorf("%w: %w", ErrAway, err)
	}
	if err := read(conn, &a); err != nil {
		return Answer{}, fmt.Errorf("%w: %w", ErrAway, err)
	}
	return a, nil
}

// Serve reads a request from a connection, answers with the result of handle, and closes the connection.
func Serve(ctx context.Context, conn net.Conn, handle func(context.Context, Request) error) error {
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return fmt.Errorf("set deadline: %w", err)
	}
	var r Request
	if err := read(conn, &r); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	var a Answer
	if err := handle(ctx, r); err != nil {
		// A plugin without an answer would let the pod start.
		if a.Error = err.Error(); len(a.Error) > maxReason {
			a.Error = strings.ToValidUTF8(a.Error[:maxReason], "") + "..."
		}
	}
	if err := write(conn, a); err != nil {
		return fmt.Errorf("answer request: %w", err)
	}
	return nil
}

// write writes a message, and a newline after it.
func write(to io.Writer, message any) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(text) >= maxBytes {
		return fmt.Errorf("message has %d bytes, must have less than %d", len(text), maxBytes)
	}
	_, err = to.Write(append(text, '\n'))
	return err
}

// read reads one message.
func read(from io.Reader, message any) error {
	limited := &io.LimitedReader{R: from, N: maxBytes}
	d := json.NewDecoder(limited)
	d.DisallowUnknownFields()
	err := d.Decode(message)
	if err != nil && limited.N == 0 {
		return fmt.Errorf("message has more than %d bytes", maxBytes)
	}
	return err
}

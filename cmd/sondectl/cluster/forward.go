package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// endPatience is how long to wait for the reason after a forwarded connection breaks.
const endPatience = time.Second

// forward forwards a local port to a port of a pod.
type forward struct {
	address string // host:port
	end     context.CancelFunc
	ended   chan struct{} // closed when forwarding has ended
	reason  *reason
}

// forward starts to forward a local port to the admin API of a pod.
func (c *Cluster) forward(ctx context.Context, namespace, pod string) (*forward, error) {
	d, err := c.dialer(namespace, pod)
	if err != nil {
		return nil, err
	}
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	f := &forward{end: end, ended: make(chan struct{}), reason: &reason{}}
	ready := make(chan struct{})
	logged := klog.NewContext(running, logr.New(f.reason))
	ports := []string{":" + strconv.Itoa(mesh.PortAdmin)}
	forwarder, err := portforward.NewOnAddressesForStreamingWithContext(logged, d, []string{"127.0.0.1"}, ports, ready,
		io.Discard, io.Discard)
	if err != nil {
		end()
		return nil, fmt.Errorf("forward port: %w", err)
	}
	// f.end stops this goroutine, unless it waits for an API server that does not respond: then it ends with the program.
	go func() {
		defer close(f.ended)
		f.reason.set(forwarder.ForwardPorts())
	}()
	select {
	case <-ready:
	case <-f.ended:
		end()
		if d.err != nil {
			return nil, d.err
		}
		return nil, f.reason.get()
	case <-ctx.Done():
		end()
		return nil, ctx.Err()
	}
	local, err := forwarder.GetPorts()
	if err != nil {
		end()
		return nil, fmt.Errorf("forward port: %w", err)
	}
	f.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(int(local[0].Local)))
	return f, nil
}

// close stops forwarding, and waits until it has ended.
func (f *forward) close() {
	f.end()
	<-f.ended
}

// lost returns why forwarding has ended, nil while it is active. A connection may break shortly before forwarding ends.
func (f *forward) lost(patience time.Duration) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-f.ended:
		return f.reason.get()
	case <-timer.C:
		return nil
	}
}

// dialer opens the connection for forwarded ports, and keeps its error, which the forwarder only returns as text.
type dialer struct {
	httpstream.Dialer
	// webSocket is the error of WebSocket, if it was tried before SPDY.
	webSocket, err error
}

// Dial implements httpstream.Dialer.
func (d *dialer) Dial(protocols ...string) (httpstream.Connection, string, error) {
	conn, protocol, err := d.Dialer.Dial(protocols...)
	d.err = d.answer(err)
	return conn, protocol, err //nolint:wrapcheck // the caller explains it
}

// answer returns the API server's status if WebSocket and SPDY have both failed: the error of SPDY is only text, and
// WebSocket needs a different right.
func (d *dialer) answer(err error) error {
	failed, ok := errors.AsType[*httpstream.UpgradeFailureError](d.webSocket)
	if err == nil || !ok {
		return err
	}
	first, ok := errors.AsType[*apierrors.StatusError](failed.Cause)
	if !ok {
		return err
	}
	status := *first
	status.ErrStatus.Message = strings.TrimPrefix(err.Error(), "unable to upgrade connection: ")
	return &status
}

// dialer returns a dialer that, like kubectl, speaks WebSocket, or SPDY if the API server or a proxy does not support
// WebSocket.
func (c *Cluster) dialer(namespace, pod string) (*dialer, error) {
	config := rest.CopyConfig(c.Config)
	config.Timeout = 0 // no timeout: forwarding has no end
	of := c.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod)
	url := of.SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, fmt.Errorf("forward port: %w", err)
	}
	webSocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, config)
	if err != nil {
		return nil, fmt.Errorf("forward port: %w", err)
	}
	overSPDY := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	d := &dialer{}
	d.Dialer = portforward.NewFallbackDialerForStreaming(webSocket, overSPDY, func(err error) bool {
		d.webSocket = err
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	return d, nil
}

// reason is why forwarding has ended: the first error in the forwarder's log, of which reason is the sink. Later errors
// follow from the first one.
type reason struct {
	mu  sync.Mutex
	err error
}

var _ logr.LogSink = (*reason)(nil)

func (r *reason) set(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
}

func (r *reason) get() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		return errors.New("it was closed")
	}
	return r.err
}

// Init implements logr.LogSink.
func (*reason) Init(logr.RuntimeInfo) {}

// Enabled implements logr.LogSink.
func (*reason) Enabled(int) bool { return false }

// Info implements logr.LogSink.
func (*reason) Info(int, string, ...any) {}

// callerGone is logged when sondectl has closed its own connection, for example after a failed call. It is not the
// reason, which may be logged later. Source: k8s.io/client-go/tools/portforward, handleConnection.
const callerGone = "Error copying from remote stream to local connection"

// Error implements logr.LogSink.
func (r *reason) Error(err error, message string, _ ...any) {
	if message != callerGone {
		r.set(err)
	}
}

// WithValues implements logr.LogSink.
func (r *reason) WithValues(...any) logr.LogSink { return r }

// WithName implements logr.LogSink.
func (r *reason) WithName(string) logr.LogSink { return r }

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

// endPatience is how long to wait for the reason once a forwarded connection has broken.
const endPatience = time.Second

// forward is a local port whose connections go to a port of a pod.
type forward struct {
	address string // host:port
	end     context.CancelFunc
	ended   chan struct{} // closed once it forwards no more
	reason  *reason
}

// forward begins to forward a local port to the admin API of a pod.
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
	forwarder, err := portforward.NewOnAddressesForStreamingWithContext(logged, d, []string{"127.0.0.1"}, ports, ready, io.Discard, io.Discard)
	if err != nil {
		end()
		return nil, fmt.Errorf("forward a port: %w", err)
	}
	go func() { // it ends by f.end. While it waits for an API server that does not answer, it ends with the program
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
		return nil, fmt.Errorf("forward a port: %w", err)
	}
	f.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(int(local[0].Local)))
	return f, nil
}

// close ends the forward, and waits until it has.
func (f *forward) close() {
	f.end()
	<-f.ended
}

// lost returns why the forward has ended, nil while it goes on. A connection may break a moment before the forward ends.
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

// dialer opens the connection over which ports are forwarded, and keeps why it could not, of which a forwarder only returns a text.
type dialer struct {
	httpstream.Dialer
	// webSocket is why WebSocket was not to be had, if that was tried before SPDY.
	webSocket, err error
}

// Dial implements httpstream.Dialer.
func (d *dialer) Dial(protocols ...string) (httpstream.Connection, string, error) {
	conn, protocol, err := d.Dialer.Dial(protocols...)
	d.err = d.answer(err)
	return conn, protocol, err //nolint:wrapcheck // the caller explains it
}

// answer returns the error with which both have failed as the status that it is, if the API server has answered: of a request for SPDY there is only the
// text, and that for WebSocket takes another right.
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

// dialer returns one that speaks WebSocket, and SPDY to API servers, or through proxies, that do not take that: as kubectl does.
func (c *Cluster) dialer(namespace, pod string) (*dialer, error) {
	config := rest.CopyConfig(c.Config)
	config.Timeout = 0 // a forward lasts
	url := c.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, fmt.Errorf("forward a port: %w", err)
	}
	webSocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, config)
	if err != nil {
		return nil, fmt.Errorf("forward a port: %w", err)
	}
	overSPDY := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	d := &dialer{}
	d.Dialer = portforward.NewFallbackDialerForStreaming(webSocket, overSPDY, func(err error) bool {
		d.webSocket = err
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	return d, nil
}

// reason is why a forward has ended. It is the sink of its log, where the first error is the reason, and the last one what follows from it.
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
		return errors.New("it was ended")
	}
	return r.err
}

// Init implements logr.LogSink.
func (*reason) Init(logr.RuntimeInfo) {}

// Enabled implements logr.LogSink.
func (*reason) Enabled(int) bool { return false }

// Info implements logr.LogSink.
func (*reason) Info(int, string, ...any) {}

// callerGone is logged where our own connection has closed, as it does once a call has failed: that says nothing about the pod, and may come before what does.
// Source: k8s.io/client-go/tools/portforward, handleConnection.
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

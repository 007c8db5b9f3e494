package webhook

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/connlimit"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// Paths of the server.
const (
	PathInject   = "/inject"
	PathValidate = "/validate"
)

// MaxConnections limits concurrent connections.
const MaxConnections = 512

// Limits of the server. Its clients are API servers, each with one HTTP/2 connection, but any pod can connect: at the
// limit, a new connection evicts another one.
const (
	// maxBody limits the size of an AdmissionReview. The API server accepts requests up to 3 MiB and stores objects up to
	// 1.5 MiB. An update has both objects, and JSON may be longer than the client's protobuf.
	maxBody = 8 << 20

	maxHeaderBytes = 16 << 10
	// A stream needs some KiB before its turn. An API server that needs more streams opens another connection.
	maxStreams = 32
	// Unread data of a connection is limited to one window. A frame gets memory as soon as its header has arrived.
	window   = 128 << 10
	maxFrame = 16 << 10

	// queueTimeout limits how long a request waits for its turn: API servers give up after the webhook's timeoutSeconds, 3
	// s.
	queueTimeout    = 2 * time.Second
	requestTimeout  = 10 * time.Second // to read the request and write the response
	idleTimeout     = 2 * time.Minute
	shutdownTimeout = 5 * time.Second
)

// ServerOptions of a Server. Several goroutines call the functions, which must be fast, since the API server waits.
type ServerOptions struct {
	// Injection has the options for pods.
	Injection Options
	// ControlPlaneCA returns Injection.ControlPlaneCA for the next pod, since rotations change it. Default: it does not
	// change.
	ControlPlaneCA func() []byte
	// Hold returns Injection.Hold for the next pod. Default: it does not change.
	Hold func() mesh.LivenessHold
	// TLS has the server's certificate. The server does not offer versions below 1.2.
	TLS *tls.Config
	// Namespace returns a namespace. After an error, such as for a namespace that is not cached yet, the API server
	// retries.
	Namespace func(ctx context.Context, name string) (Namespace, error)
	// Meshes returns the names of all meshes. If the cached names lack wanted, it reads them again, since a pod may be
	// created right after its Mesh. After an error, such as before the first read, the API server retries.
	Meshes func(ctx context.Context, wanted string) ([]string, error)
	// Mode returns the mode of a mesh's mTLS, "" without mTLS or for an unknown mesh.
	Mode func(name string) mesh.MTLSMode
	// InUse returns the number of pods and Dataplanes of a mesh. Errors are like those from Meshes.
	InUse func(mesh string) (int, error)
	// PodExists reports whether a pod exists. Errors are like those from Meshes.
	PodExists func(namespace, name string) (bool, error)
	// ServiceIPs returns the virtual addresses of a Service, none if it does not exist or has none. Errors are like those
	// from Meshes.
	ServiceIPs func(namespace, name string) ([]string, error)
	// Connections limits concurrent connections. Default MaxConnections.
	Connections int
	// Log gets errors that no caller receives. Default slog.Default.
	Log *slog.Logger
	// Registerer of the metrics. Default none.
	Registerer prometheus.Registerer
}

// Server answers AdmissionReviews of API servers: PathInject mutates pods, PathValidate checks Sonde's objects.
type Server struct {
	options   ServerOptions
	injection Options
	metrics   *metrics
	turns     *connlimit.Places[netip.Prefix]
	decoders  decoders
	warned    rate.Sometimes
}

// NewServer returns a server, or the errors in the options.
func NewServer(o ServerOptions) (*Server, error) {
	s := &Server{
		options: o, injection: o.Injection, metrics: newMetrics(),
		turns: connlimit.NewPlaces[netip.Prefix](connlimit.Options{Total: maxPlaces}), decoders: newDecoders(),
		warned: rate.Sometimes{Interval: time.Second},
	}
	s.options.Log, s.options.Connections = cmp.Or(o.Log, slog.Default()), cmp.Or(o.Connections, MaxConnections)
	s.injection.mode = o.Mode
	err := s.injection.complete()
	for name, missing := range map[string]bool{
		"TLS": o.TLS == nil, "Namespace": o.Namespace == nil, "Meshes": o.Meshes == nil, "Mode": o.Mode == nil,
		"InUse": o.InUse == nil, "PodExists": o.PodExists == nil, "ServiceIPs": o.ServiceIPs == nil,
	} {
		if missing {
			err = errors.Join(err, fmt.Errorf("%s: is missing", name))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("webhook server: %w", err)
	}
	if err := s.metrics.register(o.Registerer); err != nil {
		return nil, fmt.Errorf("register metrics of the webhook: %w", err)
	}
	return s, nil
}

// Serve serves on l until ctx ends, and closes l. Running requests then have a few seconds to end.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	config := s.options.TLS.Clone()
	config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
	connections := connlimit.New(s.options.Connections)
	server := &http.Server{
		Handler:           s.Handler(),
		TLSConfig:         config,
		ReadHeaderTimeout: requestTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      2 * requestTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, MaxReadFrameSize: maxFrame, WriteByteTimeout: requestTimeout,
			MaxReceiveBufferPerConnection: window, MaxReceiveBufferPerStream: window,
		},
		ConnContext: withCaller,
		// Failed handshakes, which any client can cause.
		ErrorLog: slog.NewLogLogger(s.options.Log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		timeout, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		err := server.Shutdown(timeout)
		if err != nil {
			err = server.Close() // closes connections that did not end by themselves
		}
		stopped <- err
	})
	err := server.ServeTLS(guardedListener{connections.Listener(l)}, "", "")
	if stop() { // the listener failed before ctx ended
		return fmt.Errorf("serve webhook on %s: %w", l.Addr(), err)
	}
	return <-stopped
}

// Handler returns the handler of the server's paths, without TLS and connection limits.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t, ctx := s.takeTurn(w, r)
		defer t.end()
		switch r = r.WithContext(ctx); r.URL.Path {
		case PathInject:
			s.handle(w, r, t, webhookInject, s.admitPod)
		case PathValidate:
			s.handle(w, r, t, webhookValidate, s.validateObject)
		default:
			http.NotFound(w, r)
		}
	})
}

// endpoint answers an AdmissionReview. Its error is an errMalformed, an errUnavailable, or an internal error.
type endpoint func(ctx context.Context, body []byte) (*admissionv1.AdmissionResponse, error)

func (s *Server) handle(w http.ResponseWriter, r *http.Request, t *turn, webhook string, e endpoint) {
	start := time.Now()
	result := s.serve(w, r, t, e)
	s.metrics.observe(webhook, result, time.Since(start))
}

// serve answers a request, and returns the result for the metrics.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, t *turn, e endpoint) (result string) {
	if status, why := checkRequest(r); status != http.StatusOK {
		http.Error(w, why, status)
		return resultMalformed
	}
	body, err := t.read(r.Body, int(r.ContentLength))
	if err != nil {
		return s.fail(w, r, err)
	}
	defer t.peer.asked()()
	t.work()
	response, err := s.answer(r.Context(), t, body, e)
	if err != nil {
		return s.fail(w, r, err)
	}
	text, err := encodeResponse(response)
	if err != nil {
		return s.fail(w, r, err)
	}
	t.peer.answered()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	t.send()
	_, _ = w.Write(text) //nolint:gosec // it is JSON; an API server that has gone asks again
	switch {
	case !response.Allowed:
		return resultDenied
	case response.Patch != nil:
		return resultPatched
	default:
		return resultAllowed
	}
}

// answer decodes a review once memory is available, and answers it.
func (s *Server) answer(ctx context.Context, t *turn, body []byte, e endpoint) (*admissionv1.AdmissionResponse, error) {
	done, err := s.decoders.begin(ctx, t.source, body)
	if err != nil {
		return nil, err
	}
	defer done()
	return e(ctx, body)
}

// checkRequest returns why a request cannot come from an API server.
func checkRequest(r *http.Request) (status int, why string) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case r.Method != http.MethodPost:
		return http.StatusMethodNotAllowed, "method: must be POST"
	case err != nil || kind != "application/json":
		return http.StatusUnsupportedMediaType, "Content-Type: must be application/json"
	case r.ContentLength < 0:
		return http.StatusLengthRequired, "Content-Length: is missing"
	case r.ContentLength > maxBody:
		return http.StatusRequestEntityTooLarge,
			fmt.Sprintf("Content-Length: %d: must be at most %d", r.ContentLength, maxBody)
	}
	return http.StatusOK, ""
}

// fail answers a request without an admission response.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) (result string) {
	why := cut.Marked(inOneLine(err), maxReason) // the error may contain parts of the request
	switch {
	case errors.Is(err, errMalformed):
		http.Error(w, why, http.StatusBadRequest)
		return resultMalformed
	case errors.Is(err, errUnavailable):
		// The API server retries until timeoutSeconds have passed. A denial would be final: controllers that create pods wait
		// longer after each denial, up to a quarter of an hour.
		w.Header().Set("Retry-After", "1")
		http.Error(w, why, http.StatusServiceUnavailable)
		result = resultUnavailable
	default:
		http.Error(w, why, http.StatusInternalServerError)
		result = resultFailed
	}
	s.warned.Do(func() { s.options.Log.Warn("admission failed", "path", r.URL.Path, "err", why) })
	return result
}

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

	"github.com/sonde-mesh/sonde/internal/connlimit"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// Paths of the server.
const (
	PathInject   = "/inject"
	PathValidate = "/validate"
)

// MaxConnections is how many connections there may be at once.
const MaxConnections = 512

// Limits of the server. API servers are its only clients, each with one HTTP/2 connection, but any pod can connect: at the limit of connections,
// a new one takes the place of another.
const (
	// maxBody is the size of an AdmissionReview. The API server takes requests of at most 3 MiB and stores objects of at most
	// 1.5 MiB. An update has both, and JSON may be longer than the protobuf that the client has sent.
	maxBody = 8 << 20

	maxHeaderBytes = 16 << 10
	// A stream takes some KiB before its turn comes. An API server that needs more of them opens another connection.
	maxStreams = 32
	// Of what comes before it is read, a connection may have one window. A frame has memory as soon as its header is there.
	window   = 128 << 10
	maxFrame = 16 << 10

	// queueTimeout is how long a request waits for its turn: API servers give up after timeoutSeconds of the webhook, 3 s.
	queueTimeout    = 2 * time.Second
	requestTimeout  = 10 * time.Second // for reading it, and for writing the answer
	idleTimeout     = 2 * time.Minute
	shutdownTimeout = 5 * time.Second
)

// ServerOptions of a Server. All functions are called by several goroutines, and must be fast: the API server waits.
type ServerOptions struct {
	// Injection says what pods get.
	Injection Options
	// ControlPlaneCA returns Injection.ControlPlaneCA of the next pod, which changes in a rotation. Default: it does not change.
	ControlPlaneCA func() []byte
	// TLS has the certificate of the server. Versions below 1.2 are not offered.
	TLS *tls.Config
	// Namespace returns a namespace. After an error, such as for one that is not known yet, the API server asks again.
	Namespace func(ctx context.Context, name string) (Namespace, error)
	// Meshes returns the names of all meshes. If wanted is not among those that it has read, it reads them again: a pod may come right
	// after its Mesh. After an error, such as before they are known, the API server asks again.
	Meshes func(ctx context.Context, wanted string) ([]string, error)
	// Strict reports whether a mesh accepts mTLS alone, false for one that is not known.
	Strict func(mesh string) bool
	// InUse returns how many pods and Dataplanes belong to a mesh, an error as Meshes.
	InUse func(mesh string) (int, error)
	// PodExists reports whether there is a pod of that name, an error as Meshes.
	PodExists func(namespace, name string) (bool, error)
	// ServiceIPs returns the virtual addresses of a Service, none for one that is not there or has none, an error as Meshes.
	ServiceIPs func(namespace, name string) ([]string, error)
	// Connections is how many there may be at once. Default MaxConnections.
	Connections int
	// Log gets what no caller is told. Default slog.Default.
	Log *slog.Logger
	// Registerer of the metrics. Default none.
	Registerer prometheus.Registerer
}

// Server answers the AdmissionReviews of Kubernetes' API servers: PathInject mutates pods, PathValidate checks objects of Sonde.
type Server struct {
	options   ServerOptions
	injection Options
	metrics   *metrics
	turns     *connlimit.Places[netip.Prefix]
	decoders  decoders
	warned    rate.Sometimes
}

// NewServer returns a server, or what is wrong with the options.
func NewServer(o ServerOptions) (*Server, error) {
	s := &Server{
		options: o, injection: o.Injection, metrics: newMetrics(),
		turns: connlimit.NewPlaces[netip.Prefix](connlimit.Options{Total: maxPlaces}), decoders: newDecoders(),
		warned: rate.Sometimes{Interval: time.Second},
	}
	s.options.Log, s.options.Connections = cmp.Or(o.Log, slog.Default()), cmp.Or(o.Connections, MaxConnections)
	s.injection.strict = o.Strict
	err := s.injection.complete()
	for name, missing := range map[string]bool{
		"TLS": o.TLS == nil, "Namespace": o.Namespace == nil, "Meshes": o.Meshes == nil, "Strict": o.Strict == nil, "InUse": o.InUse == nil, "PodExists": o.PodExists == nil,
		"ServiceIPs": o.ServiceIPs == nil,
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

// Serve serves on l until ctx ends, and closes l. Requests that have begun then have a few seconds to end.
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
		ErrorLog:    slog.NewLogLogger(s.options.Log.Handler(), slog.LevelDebug), // handshakes that fail, which any client can cause
	}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		timeout, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		err := server.Shutdown(timeout)
		if err != nil {
			err = server.Close() // connections that do not end by themselves
		}
		stopped <- err
	})
	err := server.ServeTLS(guardedListener{connections.Listener(l)}, "", "")
	if stop() { // ctx has not ended: the listener broke
		return fmt.Errorf("serve webhook on %s: %w", l.Addr(), err)
	}
	return <-stopped
}

// Handler returns the handler of the server's paths, without TLS and its limits for connections.
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

// endpoint answers an AdmissionReview. Its error is an errMalformed, an errUnavailable, or an error of the server's own.
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

// answer decodes a review and answers it, once there is memory for it.
func (s *Server) answer(ctx context.Context, t *turn, body []byte, e endpoint) (*admissionv1.AdmissionResponse, error) {
	done, err := s.decoders.begin(ctx, t.source, body)
	if err != nil {
		return nil, err
	}
	defer done()
	return e(ctx, body)
}

// checkRequest returns why a request cannot be an API server's.
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
		return http.StatusRequestEntityTooLarge, fmt.Sprintf("Content-Length: %d: must be at most %d", r.ContentLength, maxBody)
	}
	return http.StatusOK, ""
}

// fail answers a request that has no answer.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) (result string) {
	why := cut.Marked(inOneLine(err), maxReason) // it may have parts of the request
	switch {
	case errors.Is(err, errMalformed):
		http.Error(w, why, http.StatusBadRequest)
		return resultMalformed
	case errors.Is(err, errUnavailable):
		// The API server tries again until timeoutSeconds have passed. A refusal would be final: controllers that make pods wait
		// longer after each, up to a quarter of an hour.
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

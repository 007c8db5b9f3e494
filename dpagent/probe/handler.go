// Package probe is the virtual probe handler, which answers the kubelet on the virtual port. It makes each check as the
// kubelet itself would, and answers so that an unmodified kubelet reaches the same verdict.
package probe

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Options of a Handler.
type Options struct {
	// Table has the probes and hooks to answer. Any other request gets 404 and causes no check, unless Target finds its
	// target.
	Table mesh.ProbeTable
	// PodIP is the target of all checks, and the only address to listen on. Required.
	PodIP netip.Addr
	// Port is the virtual port, 1 to 65535. No check may target it. Required, unless PerPort.
	Port int
	// PerPort means that the Table's gRPC probes with a VirtualPort are answered by gRPC on that port
	// (mesh.ProbesPerPort). Port may then be 0 if there are no other probes.
	PerPort bool
	// Target returns the target of a GET of a path that is not in the Table, for a written Dataplane, and false if the
	// path has none. Default: the Table alone decides.
	Target func(path string) (Target, bool)
	// Failed is called for each check that does not succeed. It must return at once. Default: none.
	Failed func(Failure)
	// Checked is called after each check of a probe of the Table, with the outcome for the kubelet: a held failure has the
	// class Held. Failures of checks for other callers are left out while the kubelet's checks pass. It must return at
	// once. Default: none.
	Checked func(mesh.Probe, Outcome)
	// Guarded decides which failures of the Table's guarded liveness probes the kubelet sees. Default: all.
	Guarded Guarded
	// Hold selects the answer to a held liveness probe, until Handler.SetHold changes it. Default mesh.HoldErrored.
	Hold mesh.LivenessHold
	// Dial connects to the application for each check. Default: sockets that the redirection does not affect.
	Dial Dial
	// Connections limits the open connections of callers. For short times an eighth more, at least 8, may be open;
	// connections to the application have the same limit. Default MaxConnections.
	Connections int
	// Logger gets changed verdicts, and each hook. Default: none.
	Logger *slog.Logger
	// Registerer of the metrics. Default: none.
	Registerer prometheus.Registerer
}

// Failure is a check that did not succeed.
type Failure struct {
	// Container and Probe, such as liveness, name the probe of the pod.
	Container, Probe string
	// Verdict is failure, errored or warning.
	Verdict string
	Class   Class
	// Reason is human-readable, at most 512 bytes. It never contains text from the application.
	Reason string
}

// Handler answers probes and hooks.
type Handler struct {
	o       Options
	byID    map[string]*entry
	byPath  map[string]*entry // nil if several entries have the path
	byPort  map[int]*entry    // gRPC probes with their own port
	clients clients
	running sync.WaitGroup // checks
	hooks   hookCount
	metrics *metrics
	warns   atomic.Bool // held failures are answered with a warning

	mu      sync.Mutex
	targets map[Target]*entry
}

var _ http.Handler = (*Handler)(nil)

// New returns a handler. The error joins all violations of the options.
func New(o Options) (*Handler, error) {
	o.PodIP = o.PodIP.Unmap()
	if err := o.validate(); err != nil {
		return nil, err
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Connections = cmp.Or(o.Connections, MaxConnections)
	if o.Failed == nil {
		o.Failed = func(Failure) {}
	}
	if o.Checked == nil {
		o.Checked = func(mesh.Probe, Outcome) {}
	}
	h := &Handler{o: o, byID: map[string]*entry{}, byPath: map[string]*entry{}, byPort: map[int]*entry{},
		targets: map[Target]*entry{}}
	h.hooks.ended = run.NewSignal()
	h.SetHold(o.Hold)
	h.clients = newClients(o.Dial, o.PodIP, o.Port)
	var err error
	if h.metrics, err = newMetrics(o.Registerer); err != nil {
		return nil, err
	}
	for _, p := range o.Table {
		e := newEntry(p, h)
		if o.hasOwnPort(p) {
			h.byPort[int(p.VirtualPort)] = e
			continue
		}
		if p.ID != "" {
			h.byID[p.ID] = e
		}
		path := e.path
		if other, taken := h.byPath[path]; taken {
			if other != nil && sameCheck(other.probe, p) {
				continue
			}
			e = nil
		}
		h.byPath[path] = e
	}
	return h, nil
}

func (o *Options) hasOwnPort(p mesh.Probe) bool {
	return o.PerPort && p.VirtualPort != 0 && !p.Redirected()
}

// sameCheck reports whether two probes without IDs are equal, so that one entry can answer both: liveness and readiness
// often have the same path.
func sameCheck(a, b mesh.Probe) bool {
	if a.ID != "" || b.ID != "" || a.Type.IsHook() || b.Type.IsHook() {
		return false
	}
	b.Container, b.Type = a.Container, a.Type
	return reflect.DeepEqual(a, b)
}

func (o *Options) validate() error {
	var errs []error
	if !isPodIP(o.PodIP) {
		errs = append(errs, &mesh.FieldError{Field: "PodIP", Value: o.PodIP.String(),
			Allowed: "must be one IPv4 or IPv6 address"})
	}
	if o.Port < 0 || o.Port > 65535 || o.Port == 0 && !o.PerPort {
		errs = append(errs, &mesh.FieldError{Field: "Port", Value: strconv.Itoa(o.Port), Allowed: mesh.AllowedPort})
	}
	for i, p := range o.Table {
		const wrong = "probes[%d] (id %q, container %q, type %q): %s: %d: must not be the virtual port"
		if int(p.Port()) == o.Port {
			errs = append(errs, fmt.Errorf(wrong, i, p.ID, p.Container, p.Type, "port", o.Port))
		}
		if o.PerPort && o.Port == 0 && !o.hasOwnPort(p) {
			errs = append(errs, &mesh.FieldError{Field: "Port", Value: "0", Allowed: fmt.Sprintf(
				"%s: probes[%d] (id %q, container %q, type %q) has no virtualPort of its own",
				mesh.AllowedPort, i, p.ID, p.Container, p.Type)})
		}
		if o.hasOwnPort(p) && int(p.VirtualPort) == o.Port {
			errs = append(errs, fmt.Errorf(wrong, i, p.ID, p.Container, p.Type, "virtualPort", o.Port))
		}
	}
	return errors.Join(errs...)
}

// isPodIP reports whether a pod may have this address.
func isPodIP(ip netip.Addr) bool {
	return ip.IsValid() && !ip.IsUnspecified() && !ip.IsMulticast() && ip.Zone() == ""
}

// Address returns the address of the virtual port. The port is 0 if no virtual port is open.
func (h *Handler) Address() netip.AddrPort { return h.at(h.o.Port) }

// Table returns the probe table. It must not be modified.
func (h *Handler) Table() mesh.ProbeTable { return h.o.Table }

func (h *Handler) at(port int) netip.AddrPort { return netip.AddrPortFrom(h.o.PodIP, uint16(port)) }

// ServeHTTP answers one probe or hook.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		ignoreBody(w)
	}
	e := h.find(r)
	switch {
	case isAlive(r):
		result{verdict: success}.write(w, r.Host)
	case e == nil && h.o.Target != nil:
		h.serveTarget(w, r)
	case e == nil:
		notFound(w)
	case e.probe.Type.IsHook():
		e.serveHook(w, r)
	default:
		e.ask(r).heldAs(e.probe, h.warns.Load()).write(w, r.Host)
	}
}

// find returns the probe or hook that r requests, or nil.
func (h *Handler) find(r *http.Request) *entry {
	if r.Method != http.MethodGet {
		return nil
	}
	path := pathKey(r.RequestURI)
	switch ids := r.Header[mesh.ProbeHeader]; len(ids) {
	case 0:
		if e := h.byPath[path]; e != nil && !e.probe.HasEffects() {
			return e
		}
	case 1:
		if e := h.byID[ids[0]]; e != nil && e.path == path {
			return e
		}
	}
	return nil
}

// pathKey returns the key for comparing targets: byte for byte, except that escapes in a gRPC service do not matter,
// nor does the slash before an empty service.
func pathKey(target string) string {
	rest, isGRPC := strings.CutPrefix(target, "/grpc/")
	if !isGRPC || strings.Contains(rest, "?") {
		return target
	}
	port, escaped, _ := strings.Cut(rest, "/")
	service, err := url.PathUnescape(escaped)
	if err != nil {
		return target
	}
	return "/grpc/" + port + "/" + service
}

func notFound(w http.ResponseWriter) {
	header := w.Header()
	header["Content-Type"] = plainText
	header["X-Content-Type-Options"] = noSniff
	w.WriteHeader(http.StatusNotFound)
	_, _ = w.Write([]byte(http.StatusText(http.StatusNotFound) + "\n")) // an error means that the caller has disconnected
}

// Package replicas finds the replicas of the control plane by the EndpointSlices of their headless Service.
package replicas

import (
	"context"
	"maps"
	"net"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sonde-mesh/sonde/controller/watch"
)

// Port is the name of the port of the Service.
const Port = "peers"

// Options of Replicas. All are required.
type Options struct {
	// Client must not have a timeout.
	Client kubernetes.Interface
	// Namespace and Service name the headless Service.
	Namespace, Service string
	// Changed receives the addresses, host:port, by pod name: after the first read, and after each change.
	Changed func(addresses map[string]string)
}

// Replicas follows the replicas.
type Replicas struct {
	o      Options
	slices *watch.Store[*discoveryv1.EndpointSlice, slice]

	mu     sync.Mutex
	synced bool
	known  map[watch.Key]*slice
	last   map[string]string
}

// slice holds the addresses of an EndpointSlice, by pod name.
type slice struct{ addresses map[string]string }

// New returns Replicas. It reads nothing before Run.
func New(o Options) *Replicas {
	r := &Replicas{o: o, known: map[watch.Key]*slice{}}
	r.slices = watch.New(watch.Kind[*discoveryv1.EndpointSlice, slice]{
		Client: o.Client.DiscoveryV1().RESTClient(), Resource: "endpointslices", Labels: discoveryv1.LabelServiceName + "=" +
			o.Service,
		New: &discoveryv1.EndpointSlice{}, Record: r.read, Changed: r.changed, Synced: r.sync,
	})
	return r
}

// Run follows the EndpointSlices until ctx ends, and then returns nil.
func (r *Replicas) Run(ctx context.Context) error { return r.slices.Run(ctx) }

// read returns the addresses in a slice of the Service. It includes replicas that are terminating or not ready, since
// they still have sessions.
func (r *Replicas) read(s *discoveryv1.EndpointSlice) (slice, bool) {
	if s.Namespace != r.o.Namespace {
		return slice{}, false
	}
	port := ""
	for _, p := range s.Ports {
		if p.Name != nil && *p.Name == Port && p.Port != nil && (p.Protocol == nil || *p.Protocol == corev1.ProtocolTCP) {
			port = strconv.Itoa(int(*p.Port))
		}
	}
	addresses := map[string]string{}
	for _, e := range s.Endpoints {
		if port != "" && e.TargetRef != nil && len(e.Addresses) > 0 {
			addresses[e.TargetRef.Name] = net.JoinHostPort(e.Addresses[0], port)
		}
	}
	return slice{addresses}, true
}

func (r *Replicas) changed(key watch.Key, _, now *slice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now == nil {
		delete(r.known, key)
	} else {
		r.known[key] = now
	}
	r.pass()
}

func (r *Replicas) sync() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.synced = true
	r.pass()
}

// pass passes the addresses to Options.Changed. The caller holds mu, so that calls keep their order. A dual-stack
// cluster has slices of both families: pass uses IPv4, which sorts first.
func (r *Replicas) pass() {
	if !r.synced {
		return
	}
	all := map[string]string{}
	for _, s := range r.known {
		for name, address := range s.addresses {
			if other, known := all[name]; !known || address < other {
				all[name] = address
			}
		}
	}
	if r.last != nil && maps.Equal(all, r.last) {
		return
	}
	r.last = all
	r.o.Changed(all)
}

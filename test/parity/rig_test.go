package parity

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// application is the target of calls.
type application struct {
	name string
	// protocol of its port in the mesh: http, http2, grpc or tcp.
	protocol string
	// serverFirst says that the inbound is marked as server-first.
	serverFirst bool
	// serve accepts connections until the listener ends, and returns once they have ended. It calls see with what the
	// application sees. Nil for an application that does not listen.
	serve func(l net.Listener, see func(string))
	// ipv6 says that the application, its inbound and its outbounds listen on ::1.
	ipv6 bool
	// absent says that no endpoint has the service, so a plain caller has no inbound.
	absent bool
}

// host returns the address on which an application and its inbound and outbounds listen.
func (a *application) host() string {
	if a.ipv6 {
		return "::1"
	}
	return "127.0.0.1"
}

// served is a running application.
type served struct {
	*application
	// at has the address of the application for each way.
	at   map[way]string
	seen chan string
}

// Texts about what an application sees of a call.
const (
	applicationSaw = "the application: "
	sawNothing     = "nothing"
)

func (s *served) see(text string) {
	select {
	case s.seen <- text:
	default: // the call does not ask for it
	}
}

// forget discards what was seen of an earlier call.
func (s *served) forget() {
	for {
		select {
		case <-s.seen:
		default:
			return
		}
	}
}

func (s *served) next(ctx context.Context) string {
	select {
	case text := <-s.seen:
		return text
	case <-ctx.Done():
		return sawNothing
	}
}

// settle waits for what the application sees late of an abandoned call, so that it is not attributed to the next call.
func (s *served) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, longPatience)
	defer cancel()
	s.next(ctx)
}

// rig is a mesh in each mode on one machine, with a proxy of the caller and a proxy of the applications.
type rig struct {
	applications []*served
	machine      *harness.Machine
	// server is the proxy of the applications, in mode PERMISSIVE.
	server *harness.Proxy
}

const strictMesh = "strict"

func newRig(t *testing.T, envoy string, all []*call) *rig {
	t.Helper()
	p := programs
	p.Envoy = envoy
	m := harness.New(t, harness.Options{Programs: p, MeshYAML: harness.MeshYAML("PERMISSIVE")})
	must.Do(t, m.Put("strict.yaml", namedMesh(strictMesh, "STRICT")))
	more, release, err := harness.FreeAddresses(99)
	must.Do(t, err)
	t.Cleanup(func() { must.Do(t, release()) })
	r := &rig{machine: m}
	take := func() (address string) {
		if len(more) == 0 {
			t.Fatal("no more addresses")
		}
		address, more = more[0], more[1:]
		return address
	}
	for _, c := range all {
		if slices.ContainsFunc(r.applications, func(s *served) bool { return s.application == c.app }) {
			continue
		}
		if c.app.serve == nil { // the address must not be used by anything else
			r.applications = append(r.applications, newServed(c.app, c.app.same(take())))
		} else {
			r.applications = append(r.applications, start(t, c.app))
		}
	}
	r.join(t, m, "default", permissive, take)
	r.join(t, m, strictMesh, strict, take)
	return r
}

func namedMesh(name, mode string) string {
	return fmt.Sprintf("type: Mesh\nname: %s\nmtls:\n  enabledBackend: ca\n  backends:\n    - name: ca\n      type: builtin\n      mode: %s\n", name, mode)
}

func newServed(a *application, address string) *served {
	return &served{application: a, at: map[way]string{direct: address}, seen: make(chan string, 100)}
}

// start starts an application, which ends with the test.
func start(t *testing.T, a *application) *served {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(a.host(), "0"))
	must.Do(t, err)
	s := newServed(a, l.Addr().String())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.serve(l, s.see)
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	return s
}

type object = map[string]any

// join starts the two proxies of a mesh.
func (r *rig) join(t *testing.T, m *harness.Machine, mesh string, between way, take func() string) {
	t.Helper()
	var services []string
	var inbounds []object
	at := map[string]string{}
	for _, s := range r.applications {
		services = append(services, s.name)
		if s.absent {
			continue
		}
		inbound := s.same(take())
		at[s.name] = inbound
		inbounds = append(inbounds, object{
			"address": s.host(), "serviceAddress": s.host(), "port": must.Port(t, inbound), "servicePort": must.Port(t, s.at[direct]), "serverFirst": s.serverFirst,
			"tags": object{"kuma.io/service": s.name, "kuma.io/protocol": s.protocol},
		})
		if between == permissive {
			s.at[plain] = inbound
		}
	}
	b := must.Prepare(t, m, harness.ProxyOptions{Name: "b", Mesh: mesh, Service: "b", Labels: map[string]string{"kuma.io/workload": "b"}})
	declare(t, m, b, func(networking object) { networking["inbound"] = inbounds })
	must.Do(t, b.StartAgent(t.Context()))
	if between == permissive {
		r.server = b
	}
	a := must.Prepare(t, m, harness.ProxyOptions{Name: "a", Mesh: mesh, Service: "a", Outbound: services})
	declare(t, m, a, func(networking object) {
		for i, s := range r.applications { // in the order of the services
			networking["outbound"].([]any)[i].(object)["address"] = s.host()
		}
	})
	must.Do(t, a.StartApp(t.Context()))
	must.Do(t, a.StartAgent(t.Context()))
	must.Do(t, a.WaitReady(t.Context()))
	must.Do(t, b.WaitReady(t.Context()))
	for _, s := range r.applications {
		if !s.absent {
			must.HaveEndpoints(t, a, s.name, at[s.name])
		}
		s.at[between] = s.same(a.Outbounds[s.name])
	}
}

// same returns an address with the same port on the application's host.
func (a *application) same(address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		panic(err) // the harness creates valid addresses
	}
	return net.JoinHostPort(a.host(), port)
}

// declare changes and writes the Dataplane of a proxy.
func declare(t *testing.T, m *harness.Machine, p *harness.Proxy, change func(networking object)) {
	t.Helper()
	var dataplane object
	must.Do(t, json.Unmarshal([]byte(p.YAML()), &dataplane))
	change(dataplane["networking"].(object))
	text, err := json.Marshal(dataplane)
	must.Do(t, err)
	must.Do(t, m.Put(p.Mesh+"-"+p.Name+".yaml", string(text)))
}

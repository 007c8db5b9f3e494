package generator

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// bench is a Builder and a Translator, connected as in the control plane.
type bench struct {
	t          testing.TB
	builder    *meshview.Builder
	translator *Translator
	encoded    []string // names encoded since the last apply
	refused    string   // encoding fails for names that contain this text
	reported   []string
	last       error
}

var errRefused = errors.New("refused")

func newBench(t testing.TB, objects ...mesh.Object) *bench {
	b := &bench{t: t, builder: meshview.NewBuilder(meshview.Options{})}
	b.translator = NewTranslator(TranslatorOptions{Report: func(err error) { b.reported = append(b.reported, err.Error()) }})
	b.translator.encode = func(name string, m proto.Message) (*resource.Resource, error) {
		b.encoded = append(b.encoded, name)
		if b.refused != "" && strings.Contains(name, b.refused) {
			return nil, fmt.Errorf("encode %s: %w", name, errRefused)
		}
		return resource.Encode(name, m)
	}
	b.set(objects...)
	return b
}

func (b *bench) set(objects ...mesh.Object) {
	for _, o := range objects {
		o.SetDefaults()
		b.builder.Set("files", o)
	}
}

func (b *bench) delete(objects ...mesh.Object) {
	for _, o := range objects {
		b.builder.Delete("files", o.Key())
	}
}

// apply builds a view and translates its change, if any.
func (b *bench) apply() map[mesh.ID]resource.Desired {
	b.t.Helper()
	b.encoded, b.reported, b.last = nil, nil, nil
	c, ok := b.builder.Build()
	if !ok {
		return nil
	}
	changed, err := b.translator.Apply(c)
	b.last = err
	if err != nil && b.refused == "" {
		b.t.Fatalf("Apply() = %v", err)
	}
	return changed
}

// names returns the type and name of each resource of a Desired, such as "cluster api".
func names(d resource.Desired) []string {
	var all []string
	for _, typ := range resource.Types() {
		for _, set := range []*resource.Set{d.Shared, d.Node, d.Own} {
			for _, r := range set.Of(typ) {
				all = append(all, typ.Short()+" "+r.Name)
			}
		}
	}
	slices.Sort(all)
	return all
}

// versions returns the versions of all resources by name, for each set.
func versions(d resource.Desired) map[string]string {
	all := map[string]string{}
	for which, set := range map[string]*resource.Set{"shared": d.Shared, "node": d.Node, "own": d.Own} {
		for _, typ := range resource.Types() {
			for _, r := range set.Of(typ) {
				all[which+" "+typ.Short()+" "+r.Name] = r.Version
			}
		}
	}
	return all
}

type option func(*mesh.Dataplane)

// dataplane returns a Dataplane of mesh default with one inbound on port 80.
func dataplane(name, address, service string, options ...option) *mesh.Dataplane {
	d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: mesh.DefaultMesh, Name: name}}
	d.Spec.Networking.Address = address
	if service != "" {
		d.Spec.Networking.Inbound = []mesh.Inbound{{Port: 80, Tags: tags(service)}}
	}
	for _, o := range options {
		o(d)
	}
	return d
}

func tags(service string) mesh.Tags { return mesh.Tags{mesh.TagService: service} }

func unready(d *mesh.Dataplane) {
	for i := range d.Spec.Networking.Inbound {
		d.Spec.Networking.Inbound[i].Health = &mesh.Health{Ready: new(bool)}
	}
}

func transparent(d *mesh.Dataplane) {
	d.Spec.Networking.TransparentProxying = &mesh.TransparentProxying{
		RedirectPortInbound: mesh.PortRedirectIn, RedirectPortOutbound: mesh.PortRedirectOut,
	}
}

func workload(name string) option { return label(mesh.LabelWorkload, name) }

func onNode(name string) option { return label(mesh.LabelNode, name) }

func label(name, value string) option {
	return func(d *mesh.Dataplane) {
		if d.Labels == nil {
			d.Labels = map[string]string{}
		}
		d.Labels[name] = value
	}
}

func speaks(p mesh.Protocol) option {
	return func(d *mesh.Dataplane) {
		for i := range d.Spec.Networking.Inbound {
			d.Spec.Networking.Inbound[i].Tags[mesh.TagProtocol] = string(p)
		}
	}
}

// calls adds outbounds on 240.0.0.1:80, 240.0.0.2:80 and so on.
func calls(services ...string) option {
	return func(d *mesh.Dataplane) {
		for i, s := range services {
			d.Spec.Networking.Outbound = append(d.Spec.Networking.Outbound,
				mesh.Outbound{Address: fmt.Sprint("240.0.0.", i+1), Port: 80, Tags: tags(s)})
		}
	}
}

// service returns a Service of mesh default without endpoints.
func service(name string, protocol mesh.Protocol, addresses ...string) *mesh.Service {
	return &mesh.Service{
		Meta: mesh.Meta{Mesh: mesh.DefaultMesh, Name: name},
		Spec: mesh.ServiceSpec{Protocol: protocol, Addresses: addresses},
	}
}

// closedOutbound forbids connections out of the mesh.
func closedOutbound() *mesh.MeshNetworking {
	return &mesh.MeshNetworking{Outbound: &mesh.MeshOutbound{Passthrough: new(bool)}}
}

// meshService returns a MeshService on port 80 that selects the Dataplanes with a tag of its name.
func meshService(name string, p mesh.Protocol) *mesh.MeshService {
	s := &mesh.MeshService{Meta: mesh.Meta{Name: name}}
	s.Spec.Selector.DataplaneTags = mesh.Tags{mesh.TagService: name}
	s.Spec.Ports = []mesh.MeshServicePort{{Port: 80, AppProtocol: p}}
	return s
}

// refersTo gives a Dataplane an outbound to port 80 of a MeshService.
func refersTo(name string) option {
	return func(d *mesh.Dataplane) {
		n := &d.Spec.Networking
		n.Outbound = append(n.Outbound, mesh.Outbound{
			Port: uint32(20000 + len(n.Outbound)), BackendRef: &mesh.BackendRef{Kind: string(mesh.KindMeshService), Name: name, Port: 80},
		})
	}
}

func meshWith(mode mesh.MTLSMode) *mesh.Mesh {
	m := &mesh.Mesh{Name: mesh.DefaultMesh}
	if mode != "" {
		m.Spec.MTLS = &mesh.MTLS{
			EnabledBackend: "ca", Backends: []mesh.Backend{{Name: "ca", Type: mesh.BackendBuiltin, Mode: mode}},
		}
	}
	return m
}

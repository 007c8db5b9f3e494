package status_test

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/status"
)

// now is the time of the control plane's answers.
var now = time.Date(2026, 11, 27, 10, 0, 0, 0, time.UTC)

func ago(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-d)) }

// well returns the facts of a healthy mesh: web-1 calls service db, with db-1 and db-2.
func well() *status.Facts {
	f := &status.Facts{
		Now:      now,
		Health:   []*adminv1.HealthCheck{{Group: "readyz", Name: "synced", Status: adminv1.HealthCheck_OK}},
		LeftOut:  map[string]uint32{},
		Services: []*adminv1.Service{{Mesh: "default", Name: "db"}, {Mesh: "default", Name: "web"}},
	}
	addMesh(f, "default")
	addProxy(f, "default", "web-1", "web", 1)
	addProxy(f, "default", "db-1", "db", 2)
	addProxy(f, "default", "db-2", "db", 3)
	calls(f, 0, "db")
	return f
}

func addMesh(f *status.Facts, name string) {
	m := &mesh.Mesh{Name: name}
	m.Spec.MTLS = &mesh.MTLS{EnabledBackend: "ca", Backends: []mesh.Backend{{Name: "ca", Type: "builtin"}}}
	m.SetDefaults()
	f.Meshes = append(f.Meshes, &adminv1.Mesh{CaExpires: ago(-5 * 365 * 24 * time.Hour)})
	f.Specs = append(f.Specs, m)
}

// addProxy adds a Dataplane with one inbound, its proxy, and its endpoint of an existing service.
func addProxy(f *status.Facts, meshName, name, service string, n int) {
	address := fmt.Sprintf("10.0.0.%d", n)
	d := &status.Dataplane{Dataplane: &adminv1.Dataplane{Inbounds: []*adminv1.InboundHealth{{Health: adminv1.Endpoint_READY, Services: []string{service}}}}}
	d.Spec.Mesh, d.Spec.Name = meshName, name
	d.Spec.Spec.Networking = mesh.Networking{Address: address, Inbound: []mesh.Inbound{{Address: address, Port: 80}}}
	f.Dataplanes = append(f.Dataplanes, d)
	f.Proxies = append(f.Proxies, &adminv1.Proxy{
		Mesh: meshName, Name: name, Known: true, AgentState: &adminv1.AgentState{Phase: adminv1.AgentState_CONNECTED, Since: ago(time.Hour)}, Streams: []*adminv1.Stream{{}},
		Agent: &adminv1.Agent{Version: "0.1.0", CertificateExpires: ago(-20 * time.Hour)},
	})
	for _, s := range f.Services {
		if s.GetMesh() == meshName && s.GetName() == service {
			s.Endpoints = append(s.Endpoints, &adminv1.Endpoint{Address: address + ":80", Dataplane: name, Health: adminv1.Endpoint_READY, GetsTraffic: true, Sidecar: true})
		}
	}
}

// calls adds an outbound of a Dataplane to a service.
func calls(f *status.Facts, i int, service string) {
	net := &f.Dataplanes[i].Spec.Spec.Networking
	at := fmt.Sprintf("127.0.0.1:1000%d", len(net.Outbound)+1)
	net.Outbound = append(net.Outbound, mesh.Outbound{Port: uint32(10001 + len(net.Outbound)), Tags: mesh.Tags{mesh.TagService: service}})
	f.Dataplanes[i].Outbounds = append(f.Dataplanes[i].Outbounds, &adminv1.OutboundHealth{Address: at, Service: service, Health: adminv1.Endpoint_READY})
}

// unready makes the endpoints of Dataplanes not ready for a minute.
func unready(f *status.Facts, reason string, dataplanes ...int) {
	for _, i := range dataplanes {
		d := f.Dataplanes[i]
		d.Inbounds[0].Health, d.Inbounds[0].Reason, d.Inbounds[0].Since = adminv1.Endpoint_NOT_READY, reason, ago(time.Minute)
		for _, s := range f.Services {
			served := false
			for _, e := range s.GetEndpoints() {
				if e.GetDataplane() == d.Spec.Name {
					e.Health, e.GetsTraffic, e.Reason = adminv1.Endpoint_NOT_READY, false, reason
				}
				served = served || e.GetGetsTraffic()
			}
			if !served && s.GetWithoutSince() == nil {
				s.WithoutSince = ago(30 * time.Second)
			}
		}
	}
}

// fails makes a probe of a pod have a verdict for three minutes.
func fails(f *status.Facts, i int, probe, verdict, reason string) {
	f.Proxies[i].Verdicts = &adminv1.Verdicts{Probes: []*adminv1.ProbeVerdicts{{
		Container: "app", Probe: probe, Reason: reason, Total: 2, Changes: []*adminv1.VerdictChange{{Verdict: "success", At: ago(time.Hour)}, {Verdict: verdict, At: ago(3 * time.Minute)}},
	}}}
}

// phase puts an agent into a phase for two minutes, without a session unless it is connected.
func phase(f *status.Facts, i int, p adminv1.AgentState_Phase, refusal string) {
	f.Proxies[i].AgentState = &adminv1.AgentState{Phase: p, Since: ago(2 * time.Minute), Refusal: refusal}
	if p == adminv1.AgentState_NEVER_JOINED {
		f.Proxies[i].AgentState.Since = nil
	}
	if p != adminv1.AgentState_CONNECTED {
		f.Proxies[i].Agent = nil
	}
}

// onKubernetes makes the Dataplanes belong to pods in namespace shop.
func onKubernetes(f *status.Facts) {
	f.Restarts = &adminv1.ListRestartsResponse{}
	for i, d := range f.Dataplanes {
		d.Pod, d.Spec.Name, f.Proxies[i].Name = true, d.Spec.Name+".shop", f.Proxies[i].GetName()+".shop"
	}
	for _, s := range f.Services {
		s.Name += "_shop_svc_80"
		for _, e := range s.GetEndpoints() {
			e.Dataplane += ".shop"
		}
	}
	for _, d := range f.Dataplanes {
		for _, in := range d.GetInbounds() {
			in.Services[0] += "_shop_svc_80"
		}
		for i := range d.Spec.Spec.Networking.Outbound {
			d.Spec.Spec.Networking.Outbound[i].Tags[mesh.TagService] += "_shop_svc_80"
		}
	}
}

// errNotRead is the error of a control plane that has not read its store yet.
var errNotRead = grpcstatus.Error(codes.Unavailable, "the control plane has not read its store yet")

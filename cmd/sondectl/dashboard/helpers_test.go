package dashboard

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// at is when things began, in the tests.
var at = time.Date(2026, 11, 27, 10, 0, 0, 0, time.UTC)

// fakeAPI answers what status.Facts reads. errs are the errors of health, objects and restarts.
type fakeAPI struct {
	adminv1.AdminServiceClient
	health     *adminv1.Health
	dataplanes []*adminv1.Dataplane
	probeSets  []*adminv1.ProbeSet
	services   []*adminv1.Service
	proxies    []*adminv1.Proxy
	restarts   *adminv1.ListRestartsResponse // nil without Kubernetes
	errs       map[string]error
	asked      atomic.Int64 // how often agents were asked whether they live
	tail       *adminv1.Tail
}

// Watch is of a control plane of an earlier release.
func (a *fakeAPI) Watch(context.Context, *adminv1.WatchRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[adminv1.WatchResponse], error) {
	return nil, grpcstatus.Error(codes.Unimplemented, "unknown method Watch")
}

func (a *fakeAPI) GetHealth(context.Context, *adminv1.GetHealthRequest, ...grpc.CallOption) (*adminv1.Health, error) {
	return a.health, a.errs["health"]
}

func (a *fakeAPI) ListMeshes(context.Context, *adminv1.ListMeshesRequest, ...grpc.CallOption) (*adminv1.ListMeshesResponse, error) {
	return &adminv1.ListMeshesResponse{Meshes: []*adminv1.Mesh{{Object: []byte(`{"name":"default","spec":{}}`)}}}, a.errs["objects"]
}

func (a *fakeAPI) ListDataplanes(context.Context, *adminv1.ListDataplanesRequest, ...grpc.CallOption) (*adminv1.ListDataplanesResponse, error) {
	return &adminv1.ListDataplanesResponse{Dataplanes: a.dataplanes, ProbeSets: a.probeSets, Tail: a.tail}, a.errs["objects"]
}

func (a *fakeAPI) ListServices(context.Context, *adminv1.ListServicesRequest, ...grpc.CallOption) (*adminv1.ListServicesResponse, error) {
	return &adminv1.ListServicesResponse{Services: a.services, Tail: a.tail}, a.errs["objects"]
}

func (a *fakeAPI) ListProxies(_ context.Context, r *adminv1.ListProxiesRequest, _ ...grpc.CallOption) (*adminv1.ListProxiesResponse, error) {
	if r.GetAsk() {
		a.asked.Add(1)
	}
	return &adminv1.ListProxiesResponse{Proxies: a.proxies, Tail: a.tail}, a.errs["objects"]
}

func (a *fakeAPI) ListRestarts(context.Context, *adminv1.ListRestartsRequest, ...grpc.CallOption) (*adminv1.ListRestartsResponse, error) {
	if a.restarts == nil && a.errs["restarts"] == nil {
		return nil, grpcstatus.Error(codes.FailedPrecondition, "the control plane reads files")
	}
	return a.restarts, a.errs["restarts"]
}

// add adds a Dataplane with one inbound, its proxy, and its endpoint of a service.
func (a *fakeAPI) add(name, service string, probe string, h *adminv1.InboundHealth) {
	h.Services = []string{service}
	port := 8000 + len(a.dataplanes)
	object := fmt.Sprintf(`{"type":"Dataplane","mesh":"default","name":%q,"spec":{"networking":{"address":"10.0.0.1","inbound":[
		{"address":"10.0.0.1","port":%d,"serviceAddress":"127.0.0.1","servicePort":80,"tags":{"kuma.io/service":%q}%s}]}}}`, name, port, service, probe)
	a.dataplanes = append(a.dataplanes, &adminv1.Dataplane{Object: []byte(object), Inbounds: []*adminv1.InboundHealth{h}})
	a.proxies = append(a.proxies, &adminv1.Proxy{
		Mesh: "default", Name: name, Known: true, AgentState: &adminv1.AgentState{Phase: adminv1.AgentState_CONNECTED, Since: timestamppb.New(at)},
		Streams: []*adminv1.Stream{{Types: []*adminv1.TypeStatus{{Kind: "clusters", Synced: true}, {Kind: "listeners", Synced: true}}}},
		Agent: &adminv1.Agent{
			Version: "0.2.0", EnvoyVersion: "1.40.0", Features: []string{agentv1.FeatureServiceProbes}, ConnectedSince: timestamppb.New(at),
			CertificateExpires: timestamppb.New(at.AddDate(100, 0, 0)),
		},
	})
	a.services = append(a.services, &adminv1.Service{Mesh: "default", Name: service, Protocol: "http", Endpoints: []*adminv1.Endpoint{{
		Address: mesh.JoinHostPort("10.0.0.1", uint32(port)), Dataplane: name, Health: h.GetHealth(), Reason: h.GetReason(), Sidecar: true,
		GetsTraffic: h.GetHealth() == adminv1.Endpoint_READY,
	}}})
}

const tcpProbe = `,"serviceProbe":{"tcpSocket":{"port":80},"periodSeconds":1,"timeoutSeconds":1,"failureThreshold":3,"successThreshold":1}`

func ready() *adminv1.InboundHealth {
	return &adminv1.InboundHealth{Health: adminv1.Endpoint_READY, Since: timestamppb.New(at)}
}

func notReady(reason string) *adminv1.InboundHealth {
	return &adminv1.InboundHealth{Health: adminv1.Endpoint_NOT_READY, Reason: reason, Since: timestamppb.New(at)}
}

// wellAPI is a mesh that is well.
func wellAPI() *fakeAPI {
	a := &fakeAPI{
		health: &adminv1.Health{Checks: []*adminv1.HealthCheck{{Group: "readyz", Name: "synced", Status: adminv1.HealthCheck_OK}}}, errs: map[string]error{},
	}
	a.add("web-1", "web", tcpProbe, ready())
	return a
}

var errForbidden = grpcstatus.Error(codes.PermissionDenied, "not allowed")

// noClusters is a sondectl without a kubeconfig.
func noClusters() (Clusters, error) { return nil, errors.New("no kubeconfig") }

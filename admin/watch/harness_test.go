package watch

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fullCalls answers each call with one entry.
type fullCalls struct{}

func (fullCalls) ListMeshes(context.Context, *adminv1.ListMeshesRequest) (*adminv1.ListMeshesResponse, error) {
	return &adminv1.ListMeshesResponse{Meshes: []*adminv1.Mesh{{Name: "default"}}, Tail: &adminv1.Tail{}}, nil
}

func (fullCalls) ListDataplanes(context.Context, *adminv1.ListDataplanesRequest) (*adminv1.ListDataplanesResponse, error) {
	return &adminv1.ListDataplanesResponse{Dataplanes: []*adminv1.Dataplane{{Mesh: "default", Name: "web-1"}}, Tail: &adminv1.Tail{}}, nil
}

func (fullCalls) ListServices(context.Context, *adminv1.ListServicesRequest) (*adminv1.ListServicesResponse, error) {
	return &adminv1.ListServicesResponse{Services: []*adminv1.Service{{Mesh: "default", Name: "web"}}, Tail: &adminv1.Tail{}}, nil
}

func (fullCalls) ListProxies(_ context.Context, r *adminv1.ListProxiesRequest) (*adminv1.ListProxiesResponse, error) {
	p := &adminv1.Proxy{Mesh: "default", Name: "web-1"}
	if r.GetVerdicts() {
		p.Verdicts = &adminv1.Verdicts{}
	}
	return &adminv1.ListProxiesResponse{Proxies: []*adminv1.Proxy{p}, Tail: &adminv1.Tail{}}, nil
}

func (fullCalls) ListRestarts(context.Context, *adminv1.ListRestartsRequest) (*adminv1.ListRestartsResponse, error) {
	return &adminv1.ListRestartsResponse{Restarts: []*adminv1.Restart{{Namespace: "shop", Pod: "web-1", Container: "app"}}, Tail: &adminv1.Tail{}}, nil
}

func (fullCalls) GetHealth(context.Context, *adminv1.GetHealthRequest) (*adminv1.Health, error) {
	return &adminv1.Health{Checks: []*adminv1.HealthCheck{{Name: "synced", Status: adminv1.HealthCheck_OK}}}, nil
}

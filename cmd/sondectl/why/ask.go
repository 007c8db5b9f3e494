package why

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// maxServices limits the requested services of a pod.
const maxServices = 20

// Wanted reports whether the control plane may have facts about the pod.
func (f *Facts) Wanted() bool { return f.injected() && !podspec.Ended(f.Pod) }

// Ask adds the control plane's answers. If it returns an error, which is a gRPC status, Facts.Plane remains nil.
func Ask(ctx context.Context, api adminv1.AdminServiceClient, f *Facts) error {
	filter := &adminv1.Filter{Mesh: f.Pod.Labels[mesh.LabelMesh], Name: f.dataplane()}
	p := &Plane{}
	proxies, err := api.ListProxies(ctx, &adminv1.ListProxiesRequest{Filter: filter, Verdicts: true})
	if status.Code(err) == codes.NotFound { // the mesh does not exist
		f.Plane = &Plane{Unknown: status.Convert(err).Message()}
		return nil
	}
	if err != nil {
		return err //nolint:wrapcheck // the caller explains it
	}
	if all := proxies.GetProxies(); len(all) > 0 {
		p.Proxy = all[0]
	}
	dataplanes, err := api.ListDataplanes(ctx, &adminv1.ListDataplanesRequest{Filter: filter})
	if err != nil {
		return err //nolint:wrapcheck // as above
	}
	if all := dataplanes.GetDataplanes(); len(all) > 0 {
		p.Dataplane = all[0]
	}
	for _, name := range p.serviceNames() {
		services, err := api.ListServices(ctx, &adminv1.ListServicesRequest{
			Filter: &adminv1.Filter{Mesh: filter.GetMesh(), Name: name},
		})
		if err != nil {
			return err //nolint:wrapcheck // as above
		}
		p.Services = append(p.Services, services.GetServices()...)
	}
	if f.guarded() {
		p.Restart, err = api.ExplainRestart(ctx, &adminv1.ExplainRestartRequest{Namespace: f.Pod.Namespace, Pod: f.Pod.Name})
		// the other answers say why
		if code := status.Code(err); err != nil && code != codes.FailedPrecondition && code != codes.NotFound {
			return err //nolint:wrapcheck // as above
		}
	}
	f.NotAsked = append(f.NotAsked, missing(proxies.GetTail())...)
	f.Plane = p
	return nil
}

// serviceNames returns the services of the inbounds.
func (p *Plane) serviceNames() []string {
	var names []string
	for _, in := range p.Dataplane.GetInbounds() {
		names = append(names, in.GetServices()...)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return names[:min(len(names), maxServices)]
}

func missing(tail *adminv1.Tail) []string {
	var all []string
	for _, replica := range tail.GetMissingReplicas() {
		all = append(all, "replica "+replica+" of the control plane is disconnected: recent reports of its agents and Envoys are missing")
	}
	return all
}

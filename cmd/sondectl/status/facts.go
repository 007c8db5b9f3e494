// Package status says whether anything is wrong with a mesh: Read asks the control plane, Judge says what follows, and Write prints it.
package status

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// Facts are what the control plane says of all meshes, or of one.
type Facts struct {
	// Now is when it was asked.
	Now time.Time
	// Namespace is the one whose proxies, services and pods are judged; empty: all.
	Namespace string
	// Health are the checks of the replica that answers.
	Health []*adminv1.HealthCheck
	// Unready says why the replica cannot answer about meshes yet, nil if it can.
	Unready error
	Meshes  []*adminv1.Mesh
	// Specs are the objects of Meshes, in the same order.
	Specs      []*mesh.Mesh
	Dataplanes []*Dataplane
	Services   []*adminv1.Service
	Proxies    []*adminv1.Proxy
	// Restarts is nil without Kubernetes.
	Restarts *adminv1.ListRestartsResponse
	// Problems of the store, and replicas that are not heard.
	Problems []*adminv1.Problem
	Missing  []string
	// LeftOut is how many objects the control plane has not listed, by their plural.
	LeftOut map[string]uint32
	// NotAsked is what could not be asked, each with the reason.
	NotAsked []string
}

// Dataplane is one with its object.
type Dataplane struct {
	*adminv1.Dataplane
	Spec mesh.Dataplane
}

// Read asks the control plane about a mesh and a namespace, or about all. The error is a gRPC status, or says what cannot be decoded.
func Read(ctx context.Context, api adminv1.AdminServiceClient, meshName, namespace string) (*Facts, error) {
	f := &Facts{Now: time.Now(), Namespace: namespace, LeftOut: map[string]uint32{}}
	health, err := api.GetHealth(ctx, &adminv1.GetHealthRequest{})
	switch {
	case status.Code(err) == codes.PermissionDenied:
		f.NotAsked = append(f.NotAsked, "health checks: "+status.Convert(err).Message())
	case err != nil:
		return nil, err //nolint:wrapcheck // the caller explains it
	}
	f.Health = health.GetChecks()
	if err := f.readMeshes(ctx, api, &adminv1.Filter{Mesh: meshName}); err != nil {
		if status.Code(err) == codes.Unavailable && f.failing() {
			f.Unready = err
			return f, nil
		}
		return nil, err
	}
	restarts, err := api.ListRestarts(ctx, &adminv1.ListRestartsRequest{Namespace: namespace})
	switch status.Code(err) {
	case codes.OK:
		f.Restarts = restarts
	case codes.FailedPrecondition, codes.Unimplemented: // there are none, as without Kubernetes
	case codes.PermissionDenied:
		f.NotAsked = append(f.NotAsked, "restarts: "+status.Convert(err).Message())
	default:
		return nil, err //nolint:wrapcheck // the caller explains it
	}
	return f, nil
}

// failing reports whether a health check fails.
func (f *Facts) failing() bool {
	for _, c := range f.Health {
		if c.GetStatus() == adminv1.HealthCheck_FAILED {
			return true
		}
	}
	return false
}

// readMeshes asks for the lists, all at once.
func (f *Facts) readMeshes(ctx context.Context, api adminv1.AdminServiceClient, filter *adminv1.Filter) error {
	var meshes *adminv1.ListMeshesResponse
	var dataplanes *adminv1.ListDataplanesResponse
	var services *adminv1.ListServicesResponse
	var proxies *adminv1.ListProxiesResponse
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		meshes, err = api.ListMeshes(ctx, &adminv1.ListMeshesRequest{Filter: filter})
		return err
	})
	group.Go(func() (err error) {
		dataplanes, err = api.ListDataplanes(ctx, &adminv1.ListDataplanesRequest{Filter: filter})
		return err
	})
	group.Go(func() (err error) {
		services, err = api.ListServices(ctx, &adminv1.ListServicesRequest{Filter: filter})
		return err
	})
	group.Go(func() (err error) {
		proxies, err = api.ListProxies(ctx, &adminv1.ListProxiesRequest{Filter: filter, Ask: true})
		return err
	})
	if err := group.Wait(); err != nil {
		return err //nolint:wrapcheck // the caller explains it
	}
	f.Meshes, f.Services, f.Proxies = meshes.GetMeshes(), services.GetServices(), proxies.GetProxies()
	f.Problems, f.Missing = meshes.GetTail().GetProblems(), proxies.GetTail().GetMissingReplicas()
	for plural, tail := range map[string]*adminv1.Tail{
		"meshes": meshes.GetTail(), "dataplanes": dataplanes.GetTail(), "services": services.GetTail(), "proxies": proxies.GetTail(),
	} {
		if n := tail.GetLeftOut(); n > 0 {
			f.LeftOut[plural] = n
		}
	}
	for _, entry := range meshes.GetMeshes() {
		m := &mesh.Mesh{}
		if err := json.Unmarshal(entry.GetObject(), m); err != nil {
			return fmt.Errorf("decode a Mesh: %w", mesh.ExplainJSON("", entry.GetObject(), m))
		}
		f.Specs = append(f.Specs, m)
	}
	for _, entry := range dataplanes.GetDataplanes() {
		d := &Dataplane{Dataplane: entry}
		if err := json.Unmarshal(entry.GetObject(), &d.Spec); err != nil {
			return fmt.Errorf("decode a Dataplane: %w", mesh.ExplainJSON("", entry.GetObject(), &d.Spec))
		}
		f.Dataplanes = append(f.Dataplanes, d)
	}
	return nil
}

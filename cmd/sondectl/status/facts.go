// Package status finds problems of a mesh: Read calls the control plane, Judge draws conclusions, and Write prints
// them.
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
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
)

// Facts are the control plane's answers about all meshes, or one.
type Facts struct {
	// Now is the time of the answers.
	Now time.Time
	// Namespace restricts the proxies, services and pods that are judged; empty: all.
	Namespace string
	// Health are the checks of the replica that answers.
	Health []*adminv1.HealthCheck
	// Unready is the error if the replica cannot answer about meshes yet.
	Unready error
	Meshes  []*adminv1.Mesh
	// Specs are the objects of Meshes, in the same order.
	Specs      []*mesh.Mesh
	Dataplanes []*Dataplane
	// ProbeSets are the texts about the probes of pods by their ID, empty from a control plane of an earlier release.
	// Only ReadAll and Stream read them.
	ProbeSets map[uint64]*adminv1.ProbeSet
	Services  []*adminv1.Service
	Proxies   []*adminv1.Proxy
	// Restarts is nil without Kubernetes.
	Restarts *adminv1.ListRestartsResponse
	// Problems of the store, and disconnected replicas.
	Problems []*adminv1.Problem
	Missing  []string
	// LeftOut counts the objects that the control plane has omitted, by their plural.
	LeftOut map[string]uint32
	// NotAsked lists requests that failed, each with the reason.
	NotAsked []string
}

// Dataplane is a Dataplane with its decoded object.
type Dataplane struct {
	*adminv1.Dataplane
	Spec mesh.Dataplane
}

// Read reads a mesh and a namespace, or all, from the control plane. The error is a gRPC status, or names the object
// that could not be decoded.
func Read(ctx context.Context, api adminv1.AdminServiceClient, meshName, namespace string) (*Facts, error) {
	f := &Facts{Now: time.Now(), Namespace: namespace}
	r := f.read(ctx, api, scope{mesh: meshName, ask: true})
	return r.Facts, r.Err()
}

// Denied records that the caller may not ask for something.
func (f *Facts) Denied(what string, err error) {
	f.NotAsked = append(f.NotAsked, what+": "+status.Convert(err).Message())
}

// ReadHealth reads Health. The error is a gRPC status.
func (f *Facts) ReadHealth(ctx context.Context, api adminv1.AdminServiceClient) error {
	health, err := api.GetHealth(ctx, &adminv1.GetHealthRequest{})
	f.Health = health.GetChecks()
	return err //nolint:wrapcheck // the caller explains it
}

// WaitsFor reports whether an error of the objects is explained by a failing check of Health, and then sets Unready.
func (f *Facts) WaitsFor(err error) bool {
	if status.Code(err) != codes.Unavailable || !f.failing() {
		return false
	}
	f.Unready = err
	return true
}

// ReadRestarts reads Restarts. The error is a gRPC status.
func (f *Facts) ReadRestarts(ctx context.Context, api adminv1.AdminServiceClient) error {
	restarts, err := api.ListRestarts(ctx, &adminv1.ListRestartsRequest{Namespace: f.Namespace})
	switch status.Code(err) {
	case codes.OK:
		f.Restarts = restarts
	case codes.FailedPrecondition, codes.Unimplemented: // no restarts, as without Kubernetes
		return nil
	}
	return err //nolint:wrapcheck // the caller explains it
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

// probesPlural is the key of probes in Facts.LeftOut.
const probesPlural = "probes"

// AskTakes is how long a reading waits for agents that do not answer.
const AskTakes = 2 * time.Second

// scope of a reading: a mesh, or all if it is empty. With ask it finds agents that hang, which takes 2 s if there is
// one. probeSets includes the texts about probes.
type scope struct {
	mesh           string
	ask, probeSets bool
}

// readObjects requests the lists at once. The error is a gRPC status, or names what could not be decoded.
func (f *Facts) readObjects(ctx context.Context, api adminv1.AdminServiceClient, s scope) error {
	filter := &adminv1.Filter{Mesh: s.mesh}
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
		dataplanes, err = api.ListDataplanes(ctx, &adminv1.ListDataplanesRequest{Filter: filter, ProbeSets: s.probeSets})
		return err
	})
	group.Go(func() (err error) {
		services, err = api.ListServices(ctx, &adminv1.ListServicesRequest{Filter: filter})
		return err
	})
	group.Go(func() (err error) {
		proxies, err = api.ListProxies(ctx, &adminv1.ListProxiesRequest{Filter: filter, Ask: s.ask, Verdicts: true})
		return err
	})
	if err := group.Wait(); err != nil {
		return err //nolint:wrapcheck // the caller explains it
	}
	for _, entry := range meshes.GetMeshes() {
		spec, err := specOf(entry)
		if err != nil {
			return err
		}
		f.Specs = append(f.Specs, spec)
	}
	for _, entry := range dataplanes.GetDataplanes() {
		d, err := decode(entry)
		if err != nil {
			return err
		}
		f.Dataplanes = append(f.Dataplanes, d)
	}
	f.ProbeSets = byID(dataplanes.GetProbeSets())
	f.Meshes, f.Services, f.Proxies = meshes.GetMeshes(), services.GetServices(), proxies.GetProxies()
	f.setTails(meshes.GetTail(), dataplanes.GetTail(), services.GetTail(), proxies.GetTail())
	return nil
}

func byID(sets []*adminv1.ProbeSet) map[uint64]*adminv1.ProbeSet {
	all := make(map[uint64]*adminv1.ProbeSet, len(sets))
	for _, set := range sets {
		all[set.GetId()] = set
	}
	return all
}

// setTails sets what the tails of the lists say. Proxies must be set.
func (f *Facts) setTails(meshes, dataplanes, services, proxies *adminv1.Tail) {
	f.Problems, f.Missing = meshes.GetProblems(), proxies.GetMissingReplicas()
	f.LeftOut = map[string]uint32{}
	if n := describe.ProbesLeftOut(f.Proxies); n > 0 {
		f.LeftOut[probesPlural] = n
	}
	for plural, tail := range map[string]*adminv1.Tail{
		"meshes": meshes, "dataplanes": dataplanes, "services": services, "proxies": proxies,
	} {
		if n := tail.GetLeftOut(); n > 0 {
			f.LeftOut[plural] = n
		}
	}
}

func specOf(entry *adminv1.Mesh) (*mesh.Mesh, error) {
	m := &mesh.Mesh{}
	if err := json.Unmarshal(entry.GetObject(), m); err != nil {
		return nil, fmt.Errorf("decode Mesh: %w", mesh.ExplainJSON("", entry.GetObject(), m))
	}
	return m, nil
}

func decode(entry *adminv1.Dataplane) (*Dataplane, error) {
	d := &Dataplane{Dataplane: entry}
	if err := json.Unmarshal(entry.GetObject(), &d.Spec); err != nil {
		return nil, fmt.Errorf("decode Dataplane: %w", mesh.ExplainJSON("", entry.GetObject(), &d.Spec))
	}
	return d, nil
}

package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sonde-mesh/sonde/admin/caller"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
)

// service implements the API. The lists are in lists.go, and rooms of their own answer what they embed here.
type service struct {
	unimplemented
	Restarts
	Freeze
	o Options
}

// unimplemented is one level deeper than what answers.
type unimplemented struct {
	adminv1.UnimplementedAdminServiceServer
}

// How long a call waits for the first view, and how often it looks: a control plane that was started a moment ago should answer, not fail.
const (
	firstViewTimeout  = 5 * time.Second
	firstViewInterval = 20 * time.Millisecond
)

// view returns the view. Before the first it waits for that, and returns UNAVAILABLE if it does not come.
func (s *service) view(ctx context.Context) (*meshview.View, error) {
	if v := s.o.View(); v != nil {
		return v, nil
	}
	ctx, cancel := context.WithTimeout(ctx, firstViewTimeout)
	defer cancel()
	ticker := time.NewTicker(firstViewInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, status.Error(codes.Unavailable, "the control plane has not read its store yet")
		case <-ticker.C:
			if v := s.o.View(); v != nil {
				return v, nil
			}
		}
	}
}

// mesh returns the named mesh of the view.
func (s *service) mesh(ctx context.Context, name string) (*meshview.Mesh, error) {
	v, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	m := v.Mesh(name)
	if m == nil {
		return nil, noMesh(v, name)
	}
	return m, nil
}

func noMesh(v *meshview.View, name string) error {
	return status.Errorf(codes.NotFound, "mesh %q not found%s", name, mesh.DidYouMean(name, slices.Collect(maps.Keys(v.Meshes))))
}

// InspectDataplane implements adminv1.AdminServiceServer.
func (s *service) InspectDataplane(ctx context.Context, r *adminv1.InspectDataplaneRequest) (*adminv1.InspectDataplaneResponse, error) {
	kind := adminv1.Kind(r.GetKind())
	if !slices.Contains(adminv1.Kinds(), kind) {
		return nil, status.Errorf(codes.InvalidArgument, "kind %q: must be one of %v", kind, adminv1.Kinds())
	}
	p, err := s.proxy(ctx, r.GetMesh(), r.GetName())
	if err != nil {
		return nil, err
	}
	if kind == adminv1.KindBootstrap {
		body, err := s.o.Bootstrap(p)
		if err != nil {
			return nil, fmt.Errorf("make the bootstrap of %s: %w", p.ID(), err)
		}
		return &adminv1.InspectDataplaneResponse{Resources: [][]byte{body}}, nil
	}
	resources, known := s.o.Resources(p.ID(), kind)
	if !known {
		return nil, status.Errorf(codes.Unavailable, "the resources of %s are being made", p.ID())
	}
	response := &adminv1.InspectDataplaneResponse{}
	for _, any := range resources {
		message, err := any.UnmarshalNew()
		if err != nil {
			return nil, fmt.Errorf("decode %s of %s: %w", kind, p.ID(), err)
		}
		body, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
		if err != nil {
			return nil, fmt.Errorf("encode %s of %s: %w", kind, p.ID(), err)
		}
		response.Resources = append(response.Resources, body)
	}
	return response, nil
}

// proxy finds the proxy of a dataplane by name, in all meshes if meshName is "".
func (s *service) proxy(ctx context.Context, meshName, name string) (*meshview.Proxy, error) {
	v, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	return find(v, meshName, name)
}

// find finds a dataplane by name, in all meshes if meshName is "".
func find(v *meshview.View, meshName, name string) (*meshview.Proxy, error) {
	if meshName != "" && v.Mesh(meshName) == nil {
		return nil, noMesh(v, meshName)
	}
	var meshes []string
	for _, m := range v.Meshes {
		if (meshName == "" || meshName == m.Spec.Name) && m.Proxies.Get(name) != nil {
			meshes = append(meshes, m.Spec.Name)
		}
	}
	switch len(meshes) {
	case 0:
		if meshName != "" {
			return nil, status.Errorf(codes.NotFound, "dataplane %q of mesh %q not found%s", name, meshName, mesh.DidYouMean(name, v.Mesh(meshName).Proxies.Names()))
		}
		var known []string
		for _, m := range v.Meshes {
			known = append(known, m.Proxies.Names()...)
		}
		return nil, status.Errorf(codes.NotFound, "dataplane %q not found in any mesh%s", name, mesh.DidYouMean(name, known))
	case 1:
		return v.Mesh(meshes[0]).Proxies.Get(name), nil
	default:
		slices.Sort(meshes)
		return nil, status.Errorf(codes.InvalidArgument, "dataplane %q is in the meshes %s: name one", name, strings.Join(meshes, ", "))
	}
}

// GenerateDataplaneToken implements adminv1.AdminServiceServer.
func (s *service) GenerateDataplaneToken(ctx context.Context, r *adminv1.GenerateDataplaneTokenRequest) (*adminv1.GenerateDataplaneTokenResponse, error) {
	m, err := s.mesh(ctx, r.GetMesh())
	if err != nil {
		return nil, err
	}
	path := mesh.WorkloadPath(r.GetWorkload())
	switch p := m.Proxies.Get(r.GetName()); {
	case p != nil && p.Dataplane.Identity != (mesh.Identity{}):
		return nil, status.Errorf(codes.FailedPrecondition, "dataplane %q of mesh %q takes no dataplane token: its agent joins with the token of its service account",
			r.GetName(), r.GetMesh())
	case p != nil && r.GetWorkload() == "":
		path = p.Dataplane.SPIFFEPath()
	case p != nil && p.Dataplane.Workload() == "":
		return nil, status.Errorf(codes.FailedPrecondition, "workload: %q: must not be given: dataplane %q of mesh %q has neither a label %s nor a service: its agent could not join",
			r.GetWorkload(), r.GetName(), r.GetMesh(), mesh.LabelWorkload)
	case p != nil && r.GetWorkload() != p.Dataplane.Workload():
		return nil, status.Errorf(codes.FailedPrecondition, "workload: %q: must be %q, the workload of dataplane %q of mesh %q: its agent could not join",
			r.GetWorkload(), p.Dataplane.Workload(), r.GetName(), r.GetMesh())
	case r.GetWorkload() == "":
		return nil, status.Errorf(codes.InvalidArgument, "workload: must be given, since dataplane %q of mesh %q is not found%s", r.GetName(), r.GetMesh(),
			mesh.DidYouMean(r.GetName(), m.Proxies.Names()))
	}
	subject := identity.Subject{Mesh: r.GetMesh(), Dataplane: r.GetName(), Path: path}
	signed, expires, err := s.o.Token(subject, r.GetValidFor().AsDuration())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	caller.Log(ctx, s.o.Logger).InfoContext(ctx, "dataplane token issued", "mesh", subject.Mesh, "proxy", subject.Dataplane,
		"workload", mesh.WorkloadText(path), "expires", expires)
	return &adminv1.GenerateDataplaneTokenResponse{Token: signed, Expires: timestamppb.New(expires)}, nil
}

// RotateCA implements adminv1.AdminServiceServer.
func (s *service) RotateCA(ctx context.Context, r *adminv1.RotateCARequest) (*adminv1.Rotation, error) {
	if _, err := s.mesh(ctx, r.GetMesh()); err != nil {
		return nil, err
	}
	rotation, err := s.o.Rotator.Rotate(ctx, r.GetMesh(), r.GetForce())
	if err != nil {
		return nil, fmt.Errorf("rotate the certificate authority of mesh %q: %w", r.GetMesh(), err)
	}
	caller.Log(ctx, s.o.Logger).InfoContext(ctx, "CA rotation requested", "mesh", r.GetMesh(), "force", r.GetForce(),
		"step", rotation.GetStep().String(), "waiting", len(rotation.GetWaiting()))
	return rotation, nil
}

// GetRotation implements adminv1.AdminServiceServer.
func (s *service) GetRotation(ctx context.Context, r *adminv1.GetRotationRequest) (*adminv1.Rotation, error) {
	if _, err := s.mesh(ctx, r.GetMesh()); err != nil {
		return nil, err
	}
	rotation, err := s.o.Rotator.Rotation(ctx, r.GetMesh())
	if err != nil {
		return nil, fmt.Errorf("read the rotation of mesh %q: %w", r.GetMesh(), err)
	}
	return rotation, nil
}

// RotateServingCA implements adminv1.AdminServiceServer.
func (s *service) RotateServingCA(ctx context.Context, r *adminv1.RotateServingCARequest) (*adminv1.Rotation, error) {
	rotation, err := s.o.Rotator.RotateServing(ctx, r.GetForce(), r.GetProceed())
	if err != nil {
		return nil, fmt.Errorf("rotate the serving CA: %w", err)
	}
	caller.Log(ctx, s.o.Logger).InfoContext(ctx, "serving CA rotation requested", "force", r.GetForce(), "proceed", r.GetProceed(),
		"step", rotation.GetStep().String(), "waiting", len(rotation.GetWaiting()))
	return rotation, nil
}

// GetServingRotation implements adminv1.AdminServiceServer.
func (s *service) GetServingRotation(ctx context.Context, _ *adminv1.GetServingRotationRequest) (*adminv1.Rotation, error) {
	rotation, err := s.o.Rotator.ServingRotation(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the rotation of the serving CA: %w", err)
	}
	return rotation, nil
}

// DrainDataplane implements adminv1.AdminServiceServer.
func (s *service) DrainDataplane(ctx context.Context, r *adminv1.DrainDataplaneRequest) (*adminv1.DrainDataplaneResponse, error) {
	p, err := s.proxy(ctx, r.GetMesh(), r.GetName())
	if err != nil {
		return nil, err
	}
	var reason *string
	if !r.GetUndo() {
		reason = &r.Reason
	}
	before, err := s.o.Drain(ctx, p, reason)
	if err != nil {
		return nil, err
	}
	caller.Log(ctx, s.o.Logger).InfoContext(ctx, "drain requested", "mesh", p.Dataplane.Mesh, "proxy", p.Dataplane.Name, "undo", r.GetUndo())
	return &adminv1.DrainDataplaneResponse{Mesh: p.Dataplane.Mesh, Before: before}, nil
}

// GetHealth implements adminv1.AdminServiceServer.
func (s *service) GetHealth(ctx context.Context, _ *adminv1.GetHealthRequest) (*adminv1.Health, error) {
	return &adminv1.Health{Checks: s.o.Health(ctx)}, nil
}

// object encodes an object as JSON.
func object(o mesh.Object) ([]byte, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encode %s %q: %w", o.Key().Kind, o.Key().Name, err)
	}
	return body, nil
}

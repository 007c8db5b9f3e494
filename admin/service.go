package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
)

// service implements the API. The lists are in lists.go.
type service struct {
	adminv1.UnimplementedAdminServiceServer
	o Options
}

// view returns the view, or UNAVAILABLE before the first.
func (s *service) view() (*meshview.View, error) {
	v := s.o.View()
	if v == nil {
		return nil, status.Error(codes.Unavailable, "the control plane has not read its store yet")
	}
	return v, nil
}

// mesh returns the named mesh of the view.
func (s *service) mesh(name string) (*meshview.Mesh, error) {
	v, err := s.view()
	if err != nil {
		return nil, err
	}
	m := v.Mesh(name)
	if m == nil {
		return nil, noMesh(name)
	}
	return m, nil
}

func noMesh(name string) error { return status.Errorf(codes.NotFound, "mesh %q not found", name) }

// InspectDataplane implements adminv1.AdminServiceServer.
func (s *service) InspectDataplane(_ context.Context, r *adminv1.InspectDataplaneRequest) (*adminv1.InspectDataplaneResponse, error) {
	kind := adminv1.Kind(r.GetKind())
	if !slices.Contains(adminv1.Kinds(), kind) {
		return nil, status.Errorf(codes.InvalidArgument, "kind %q: must be one of %v", kind, adminv1.Kinds())
	}
	v, err := s.view()
	if err != nil {
		return nil, err
	}
	p, err := find(v, r.GetMesh(), r.GetName())
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

// find finds a dataplane by name, in all meshes if meshName is "".
func find(v *meshview.View, meshName, name string) (*meshview.Proxy, error) {
	var meshes []string
	for _, m := range v.Meshes {
		if (meshName == "" || meshName == m.Spec.Name) && m.Proxies.Get(name) != nil {
			meshes = append(meshes, m.Spec.Name)
		}
	}
	switch len(meshes) {
	case 0:
		if meshName != "" {
			return nil, status.Errorf(codes.NotFound, "dataplane %q of mesh %q not found", name, meshName)
		}
		return nil, status.Errorf(codes.NotFound, "dataplane %q not found in any mesh", name)
	case 1:
		return v.Mesh(meshes[0]).Proxies.Get(name), nil
	default:
		slices.Sort(meshes)
		return nil, status.Errorf(codes.InvalidArgument, "dataplane %q is in the meshes %s: name one", name, strings.Join(meshes, ", "))
	}
}

// GenerateDataplaneToken implements adminv1.AdminServiceServer.
func (s *service) GenerateDataplaneToken(ctx context.Context, r *adminv1.GenerateDataplaneTokenRequest) (*adminv1.GenerateDataplaneTokenResponse, error) {
	m, err := s.mesh(r.GetMesh())
	if err != nil {
		return nil, err
	}
	workload := r.GetWorkload()
	switch p := m.Proxies.Get(r.GetName()); {
	case p != nil && p.Dataplane.Identity != (mesh.Identity{}):
		return nil, status.Errorf(codes.FailedPrecondition, "dataplane %q of mesh %q takes no dataplane token: its agent joins with the token of its service account",
			r.GetName(), r.GetMesh())
	case p != nil && workload == "":
		workload = p.Dataplane.Workload()
	case p != nil && workload != p.Dataplane.Workload():
		return nil, status.Errorf(codes.FailedPrecondition, "workload: %q: must be %q, the workload of dataplane %q of mesh %q: its agent could not join",
			workload, p.Dataplane.Workload(), r.GetName(), r.GetMesh())
	case workload == "":
		return nil, status.Errorf(codes.InvalidArgument, "workload: must be given, since dataplane %q of mesh %q is not found", r.GetName(), r.GetMesh())
	}
	subject := identity.Subject{Mesh: r.GetMesh(), Dataplane: r.GetName(), Path: mesh.WorkloadPath(workload)}
	signed, expires, err := s.o.Token(subject, r.GetValidFor().AsDuration())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	s.o.Logger.InfoContext(ctx, "dataplane token issued", "mesh", subject.Mesh, "proxy", subject.Dataplane,
		"workload", workload, "expires", expires, "peer", peerAddress(ctx))
	return &adminv1.GenerateDataplaneTokenResponse{Token: signed, Expires: timestamppb.New(expires)}, nil
}

// RotateCA implements adminv1.AdminServiceServer.
func (s *service) RotateCA(ctx context.Context, r *adminv1.RotateCARequest) (*adminv1.Rotation, error) {
	if _, err := s.mesh(r.GetMesh()); err != nil {
		return nil, err
	}
	rotation, err := s.o.Rotator.Rotate(ctx, r.GetMesh(), r.GetForce())
	if err != nil {
		return nil, fmt.Errorf("rotate the certificate authority of mesh %q: %w", r.GetMesh(), err)
	}
	s.o.Logger.InfoContext(ctx, "CA rotation asked for", "mesh", r.GetMesh(), "force", r.GetForce(),
		"step", rotation.GetStep().String(), "waiting", len(rotation.GetWaiting()), "peer", peerAddress(ctx))
	return rotation, nil
}

// GetRotation implements adminv1.AdminServiceServer.
func (s *service) GetRotation(ctx context.Context, r *adminv1.GetRotationRequest) (*adminv1.Rotation, error) {
	if _, err := s.mesh(r.GetMesh()); err != nil {
		return nil, err
	}
	rotation, err := s.o.Rotator.Rotation(ctx, r.GetMesh())
	if err != nil {
		return nil, fmt.Errorf("read the rotation of mesh %q: %w", r.GetMesh(), err)
	}
	return rotation, nil
}

// object encodes an object as JSON.
func object(o mesh.Object) ([]byte, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encode %s %q: %w", o.Key().Kind, o.Key().Name, err)
	}
	return body, nil
}

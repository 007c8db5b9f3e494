package admin

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sonde-mesh/sonde/admin/caller"
	"github.com/sonde-mesh/sonde/admin/lists"
	"github.com/sonde-mesh/sonde/admin/watch"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
)

// service implements the API. It embeds the packages that answer most calls.
type service struct {
	unimplemented
	*lists.Answers
	Rotations
	Strict
	Restarts
	Freeze
	o      Options
	watch  *watch.Server
	rights watch.Rights // to Watch
}

// once returns the service for one reading of watch.
func (s *service) once(before watch.Calls) watch.Calls {
	now := *s
	var answers *lists.Answers
	if b, ok := before.(*service); ok {
		answers = b.Answers
	}
	now.Answers = s.Once(answers)
	return &now
}

// Watch implements adminv1.AdminServiceServer.
func (s *service) Watch(r *adminv1.WatchRequest, stream adminv1.AdminService_WatchServer) error {
	return s.watch.Watch(r, stream, s.rights)
}

// unimplemented is embedded one level deeper, so that the methods of the other embedded types take precedence.
type unimplemented struct {
	adminv1.UnimplementedAdminServiceServer
}

// InspectDataplane implements adminv1.AdminServiceServer.
func (s *service) InspectDataplane(
	ctx context.Context, r *adminv1.InspectDataplaneRequest,
) (*adminv1.InspectDataplaneResponse, error) {
	kind := adminv1.Kind(r.GetKind())
	if !slices.Contains(adminv1.Kinds(), kind) {
		return nil, status.Errorf(codes.InvalidArgument, "kind %q: must be one of %v", kind, adminv1.Kinds())
	}
	p, err := s.o.View.Proxy(ctx, r.GetMesh(), r.GetName())
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
		return nil, status.Errorf(codes.Unavailable, "the resources of %s are still being generated", p.ID())
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

// GenerateDataplaneToken implements adminv1.AdminServiceServer.
func (s *service) GenerateDataplaneToken(
	ctx context.Context, r *adminv1.GenerateDataplaneTokenRequest,
) (*adminv1.GenerateDataplaneTokenResponse, error) {
	m, err := s.o.View.Mesh(ctx, r.GetMesh())
	if err != nil {
		return nil, err
	}
	path := mesh.WorkloadPath(r.GetWorkload())
	switch p := m.Proxies.Get(r.GetName()); {
	case p != nil && p.Dataplane.Identity != (mesh.Identity{}):
		return nil, status.Errorf(codes.FailedPrecondition,
			"dataplane %q of mesh %q does not use dataplane tokens: its agent joins with the token of its service account",
			r.GetName(), r.GetMesh())
	case p != nil && r.GetWorkload() == "":
		path = p.Dataplane.SPIFFEPath()
	case p != nil && p.Dataplane.Workload() == "":
		return nil, status.Errorf(codes.FailedPrecondition,
			"workload: %q: must not be given: dataplane %q of mesh %q has neither a label %s nor a service: its agent could not join",
			r.GetWorkload(), r.GetName(), r.GetMesh(), mesh.LabelWorkload)
	case p != nil && r.GetWorkload() != p.Dataplane.Workload():
		return nil, status.Errorf(codes.FailedPrecondition,
			"workload: %q: must be %q, the workload of dataplane %q of mesh %q: its agent could not join",
			r.GetWorkload(), p.Dataplane.Workload(), r.GetName(), r.GetMesh())
	case r.GetWorkload() == "":
		return nil, status.Errorf(codes.InvalidArgument,
			"workload: must be given, since dataplane %q of mesh %q is not found%s", r.GetName(), r.GetMesh(),
			mesh.DidYouMean(r.GetName(), m.Proxies.Names()))
	}
	subject := identity.Subject{Mesh: r.GetMesh(), Dataplane: r.GetName(), Path: path}
	signed, expires, err := s.o.Token(subject, r.GetValidFor().AsDuration())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	caller.Log(ctx, s.o.Logger).InfoContext(ctx, "dataplane token issued", "mesh", subject.Mesh,
		"proxy", subject.Dataplane,
		"workload", mesh.WorkloadText(path), "expires", expires)
	return &adminv1.GenerateDataplaneTokenResponse{Token: signed, Expires: timestamppb.New(expires)}, nil
}

// DrainDataplane implements adminv1.AdminServiceServer.
func (s *service) DrainDataplane(
	ctx context.Context, r *adminv1.DrainDataplaneRequest,
) (*adminv1.DrainDataplaneResponse, error) {
	p, err := s.o.View.Proxy(ctx, r.GetMesh(), r.GetName())
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
	caller.Log(ctx, s.o.Logger).InfoContext(ctx, "drain requested", "mesh", p.Dataplane.Mesh, "proxy", p.Dataplane.Name,
		"undo", r.GetUndo())
	return &adminv1.DrainDataplaneResponse{Mesh: p.Dataplane.Mesh, Before: before}, nil
}

package watch

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// Calls answers the calls whose responses are sections, as adminv1.AdminServiceServer.
type Calls interface {
	ListMeshes(context.Context, *adminv1.ListMeshesRequest) (*adminv1.ListMeshesResponse, error)
	ListDataplanes(context.Context, *adminv1.ListDataplanesRequest) (*adminv1.ListDataplanesResponse, error)
	ListServices(context.Context, *adminv1.ListServicesRequest) (*adminv1.ListServicesResponse, error)
	ListProxies(context.Context, *adminv1.ListProxiesRequest) (*adminv1.ListProxiesResponse, error)
	ListRestarts(context.Context, *adminv1.ListRestartsRequest) (*adminv1.ListRestartsResponse, error)
	GetHealth(context.Context, *adminv1.GetHealthRequest) (*adminv1.Health, error)
	// Waited returns how long the lists of objects have waited for other replicas, which is no work.
	Waited() time.Duration
}

// list is the response to a call: its entries with their names, and its other fields.
type list struct {
	names   []string
	entries []proto.Message
	rest    proto.Message
}

// kind is how a section is read, and sent.
type kind struct {
	// apart means that the section does not come from the view: it may take long without work, such as for a check.
	apart bool
	read  func(context.Context, Calls) (list, error)
	// fill sets the list of a message. rest may be nil, and is not changed.
	fill func(m *adminv1.WatchResponse, rest proto.Message, entries []proto.Message)
}

// kindOf returns the kind of a list. entries is its field with the entries.
func kindOf[R, E proto.Message](
	call func(context.Context, Calls) (R, error), entries func(R) *[]E, name func(E) string,
	fill func(*adminv1.WatchResponse, R),
) kind {
	return kind{
		read: func(ctx context.Context, c Calls) (list, error) {
			r, err := call(ctx, c)
			if err != nil {
				return list{}, err
			}
			l := list{rest: r}
			for _, e := range *entries(r) {
				l.names, l.entries = append(l.names, name(e)), append(l.entries, e)
			}
			*entries(r) = nil
			return l, nil
		},
		fill: func(m *adminv1.WatchResponse, rest proto.Message, some []proto.Message) {
			var r R
			if rest != nil {
				r = proto.CloneOf(rest.(R)) //nolint:forcetypeassert // as it was read
			} else {
				r = r.ProtoReflect().New().Interface().(R) //nolint:forcetypeassert // its own type
			}
			for _, e := range some {
				*entries(r) = append(*entries(r), e.(E)) //nolint:forcetypeassert // as it was read
			}
			fill(m, r)
		},
	}
}

func apart(k kind) kind {
	k.apart = true
	return k
}

// kinds are the kinds of all sections.
var kinds = map[adminv1.WatchRequest_Section]kind{
	adminv1.WatchRequest_MESHES: kindOf(
		func(ctx context.Context, c Calls) (*adminv1.ListMeshesResponse, error) {
			return c.ListMeshes(ctx, &adminv1.ListMeshesRequest{})
		},
		func(r *adminv1.ListMeshesResponse) *[]*adminv1.Mesh { return &r.Meshes },
		(*adminv1.Mesh).GetName,
		func(m *adminv1.WatchResponse, r *adminv1.ListMeshesResponse) {
			m.List = &adminv1.WatchResponse_Meshes{Meshes: r}
		}),
	adminv1.WatchRequest_DATAPLANES: kindOf(
		func(ctx context.Context, c Calls) (*adminv1.ListDataplanesResponse, error) {
			return c.ListDataplanes(ctx, &adminv1.ListDataplanesRequest{ProbeSets: true})
		},
		func(r *adminv1.ListDataplanesResponse) *[]*adminv1.Dataplane { return &r.Dataplanes },
		func(d *adminv1.Dataplane) string { return mesh.MakeID(d.GetMesh(), d.GetName()) },
		func(m *adminv1.WatchResponse, r *adminv1.ListDataplanesResponse) {
			m.List = &adminv1.WatchResponse_Dataplanes{Dataplanes: r}
		}),
	adminv1.WatchRequest_SERVICES: kindOf(
		func(ctx context.Context, c Calls) (*adminv1.ListServicesResponse, error) {
			return c.ListServices(ctx, &adminv1.ListServicesRequest{})
		},
		func(r *adminv1.ListServicesResponse) *[]*adminv1.Service { return &r.Services },
		func(s *adminv1.Service) string { return mesh.MakeID(s.GetMesh(), s.GetName()) },
		func(m *adminv1.WatchResponse, r *adminv1.ListServicesResponse) {
			m.List = &adminv1.WatchResponse_Services{Services: r}
		}),
	adminv1.WatchRequest_PROXIES: kindOf(
		func(ctx context.Context, c Calls) (*adminv1.ListProxiesResponse, error) {
			return c.ListProxies(ctx, &adminv1.ListProxiesRequest{Verdicts: true})
		},
		func(r *adminv1.ListProxiesResponse) *[]*adminv1.Proxy { return &r.Proxies },
		func(p *adminv1.Proxy) string { return mesh.MakeID(p.GetMesh(), p.GetName()) },
		func(m *adminv1.WatchResponse, r *adminv1.ListProxiesResponse) {
			m.List = &adminv1.WatchResponse_Proxies{Proxies: r}
		}),
	adminv1.WatchRequest_RESTARTS: apart(kindOf(
		func(ctx context.Context, c Calls) (*adminv1.ListRestartsResponse, error) {
			return c.ListRestarts(ctx, &adminv1.ListRestartsRequest{})
		},
		func(r *adminv1.ListRestartsResponse) *[]*adminv1.Restart { return &r.Restarts },
		// A space sorts before all characters of names.
		func(r *adminv1.Restart) string { return r.GetNamespace() + " " + r.GetPod() + " " + r.GetContainer() },
		func(m *adminv1.WatchResponse, r *adminv1.ListRestartsResponse) {
			m.List = &adminv1.WatchResponse_Restarts{Restarts: r}
		})),
	adminv1.WatchRequest_HEALTH: {
		apart: true,
		read: func(ctx context.Context, c Calls) (list, error) {
			r, err := c.GetHealth(ctx, &adminv1.GetHealthRequest{})
			return list{rest: r}, err
		},
		fill: func(m *adminv1.WatchResponse, rest proto.Message, _ []proto.Message) {
			m.List = &adminv1.WatchResponse_Health{Health: rest.(*adminv1.Health)}
		},
	},
}

// Package lookup finds the objects that calls of the admin API name, in the current view. Errors are gRPC statuses.
package lookup

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/meshview"
)

// View returns the current view, nil before the first.
type View func() *meshview.View

// How long a call waits for the first view, and how often it polls: calls should not fail while a control plane is
// starting.
const (
	firstViewTimeout  = 5 * time.Second
	firstViewInterval = 20 * time.Millisecond
)

// Await returns the view. It waits for the first one, and returns UNAVAILABLE after a while.
func (current View) Await(ctx context.Context) (*meshview.View, error) {
	ctx, cancel := context.WithTimeout(ctx, firstViewTimeout)
	defer cancel()
	for range run.Every(ctx, firstViewInterval) {
		if v := current(); v != nil {
			return v, nil
		}
	}
	return nil, errNotRead
}

var errNotRead = status.Error(codes.Unavailable, "the control plane has not read its store yet")

// Ready returns UNAVAILABLE before the first view.
func (current View) Ready() error {
	if current() == nil {
		return errNotRead
	}
	return nil
}

// Within returns the view, or NOT_FOUND if the mesh does not exist; "" means all meshes.
func (current View) Within(ctx context.Context, meshName string) (*meshview.View, error) {
	v, err := current.Await(ctx)
	if err == nil && meshName != "" && v.Mesh(meshName) == nil {
		return nil, noMesh(v, meshName)
	}
	return v, err
}

// Mesh returns the named mesh.
func (current View) Mesh(ctx context.Context, name string) (*meshview.Mesh, error) {
	v, err := current.Await(ctx)
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
	return status.Errorf(codes.NotFound, "mesh %q not found%s", name,
		mesh.DidYouMean(name, slices.Collect(maps.Keys(v.Meshes))))
}

// Proxy returns the proxy of the named Dataplane, in all meshes if meshName is "".
func (current View) Proxy(ctx context.Context, meshName, name string) (*meshview.Proxy, error) {
	v, err := current.Within(ctx, meshName)
	if err != nil {
		return nil, err
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
			near := mesh.DidYouMean(name, v.Mesh(meshName).Proxies.Names())
			return nil, status.Errorf(codes.NotFound, "dataplane %q of mesh %q not found%s", name, meshName, near)
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
		return nil, status.Errorf(codes.InvalidArgument, "dataplane %q is in the meshes %s: name one",
			name, strings.Join(meshes, ", "))
	}
}

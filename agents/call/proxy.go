package call

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
)

// Proxy finds a proxy in a view, which is nil before the first one.
func Proxy(v *meshview.View, meshName, dataplane string) (*meshview.Mesh, *meshview.Proxy, error) {
	if v == nil {
		return nil, nil, status.Error(codes.Unavailable, "the control plane has no view of the mesh yet: try again")
	}
	m := v.Mesh(meshName)
	if m == nil {
		return nil, nil, status.Errorf(codes.FailedPrecondition, "mesh %q is not known (yet)", meshName)
	}
	p := m.Proxies.Get(dataplane)
	if p == nil {
		return nil, nil, status.Errorf(codes.FailedPrecondition, "dataplane %q of mesh %q is not known (yet)", dataplane, meshName)
	}
	return m, p, nil
}

// CheckInstance returns an error if a caller is not the proxy that the view has under its name, but an earlier or a later one. A proxy that
// is not in the view is none of these.
func CheckInstance(v *meshview.View, who identity.Subject) error {
	_, p := v.Proxy(who.ID())
	if p == nil || p.Dataplane.Identity.Instance == who.Instance {
		return nil
	}
	return status.Error(codes.PermissionDenied, OtherInstance("certificate", who, p.Dataplane))
}

// OtherInstance says that a credential is not of the Dataplane that has its name.
func OtherInstance(credential string, who identity.Subject, d *mesh.Dataplane) string {
	return "the " + credential + " is for " + instanceText(who.Instance) + " of dataplane \"" + who.Dataplane + "\", the current one is " +
		instanceText(d.Identity.Instance)
}

func instanceText(instance string) string {
	if instance == "" {
		return "one without a UID"
	}
	return "the one with UID " + instance
}

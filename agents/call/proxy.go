package call

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
)

// Proxy finds a proxy in v. v is nil before the first view.
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
		return nil, nil, status.Errorf(codes.FailedPrecondition, "dataplane %q of mesh %q is not known (yet)",
			dataplane, meshName)
	}
	return m, p, nil
}

// CheckInstance returns an error if the caller is an earlier or a later proxy of the same name than the one in the
// view. It accepts a proxy that is not in the view.
func CheckInstance(v *meshview.View, who identity.Subject) error {
	_, p := v.Proxy(who.ID())
	if p == nil || p.Dataplane.Identity.Instance == who.Instance {
		return nil
	}
	return status.Error(codes.PermissionDenied, OtherInstance("certificate", who, p.Dataplane))
}

// OtherInstance returns the reason for rejecting a credential that was issued to another proxy of the same name.
func OtherInstance(credential string, who identity.Subject, d *mesh.Dataplane) string {
	return "the " + credential + " is for " + instanceText(who.Instance) + " of dataplane \"" + who.Dataplane +
		"\", the current one is " +
		instanceText(d.Identity.Instance)
}

func instanceText(instance string) string {
	if instance == "" {
		return "one without a UID"
	}
	return "the one with UID " + instance
}

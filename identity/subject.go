package identity

import (
	"fmt"
	"regexp"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Subject is the proxy that a credential identifies, with the names in its certificate.
type Subject struct {
	Mesh, Dataplane string
	// Path of the SPIFFE ID, as in mesh.Dataplane.SPIFFEPath.
	Path string
	// Instance of the proxy, as in mesh.Identity.Instance: another instance of the same name is another proxy. In a
	// certificate, it is the serial number of the subject.
	Instance string
}

// SubjectOf returns the subject that the certificate of a Dataplane must have.
func SubjectOf(d *mesh.Dataplane) Subject {
	return Subject{Mesh: d.Mesh, Dataplane: d.Name, Path: d.SPIFFEPath(), Instance: d.Identity.Instance}
}

// ID is <mesh>/<dataplane>.
func (s Subject) ID() mesh.ID { return mesh.MakeID(s.Mesh, s.Dataplane) }

// Validate rejects names that are too long for a certificate, or would escape their directory in the storage.
func (s Subject) Validate() error {
	if err := checkNames(s.Mesh, s.Dataplane); err != nil {
		return err
	}
	if len(s.Path) > maxPath || s.Path == "" || spiffeid.ValidatePath(s.Path) != nil {
		return fmt.Errorf("SPIFFE path %q: must be segments of letters, digits, '.', '_' or '-', each after a '/', such as %s, with at most %d characters",
			shorten(s.Path), mesh.WorkloadPath("web"), maxPath)
	}
	if !instance.MatchString(s.Instance) {
		return fmt.Errorf("instance %q: must be at most 64 letters, digits or '-'", shorten(s.Instance))
	}
	return nil
}

var (
	label  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	domain = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	// instance fits into a subject's serial number (X.520, upper bound 64).
	instance = regexp.MustCompile(`^[A-Za-z0-9-]{0,64}$`)
)

// Limits on names: a DNS name has at most 253 characters, a SPIFFE ID at most 2048 bytes.
const (
	maxDNSName = 253
	maxPath    = 522
)

func checkMesh(name string) error {
	if !label.MatchString(name) {
		return fmt.Errorf("mesh %q: must be a DNS label", shorten(name))
	}
	return nil
}

func checkNames(meshName, dataplane string) error {
	if err := checkMesh(meshName); err != nil {
		return err
	}
	if !domain.MatchString(dataplane) {
		return fmt.Errorf("dataplane %q: must be a DNS subdomain", shorten(dataplane))
	}
	if n := len(mesh.ProxyDNSName(meshName, dataplane)); n > maxDNSName {
		return fmt.Errorf("dataplane %q: its name in the certificate would have %d characters, at most %d are allowed",
			shorten(dataplane), n, maxDNSName)
	}
	return nil
}

// shorten limits a caller's input in an error.
func shorten(s string) string { return mesh.Shorten(s, 80) }

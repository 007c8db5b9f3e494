package identity

import (
	"fmt"
	"regexp"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Subject is whom a credential identifies: a proxy, and the workload that its certificate names.
type Subject struct {
	Mesh, Dataplane, Workload string
}

// ID is <mesh>/<dataplane>.
func (s Subject) ID() mesh.ID { return mesh.MakeID(s.Mesh, s.Dataplane) }

// Validate refuses names that do not fit into a certificate, or that would lead out of their directory in the storage.
func (s Subject) Validate() error {
	if err := checkNames(s.Mesh, s.Dataplane); err != nil {
		return err
	}
	if w := s.Workload; !segment.MatchString(w) || w == "." || w == ".." || len(w) > maxWorkload {
		return fmt.Errorf("workload %q: must be letters, digits, '.', '_' or '-', at most %d", shorten(w), maxWorkload)
	}
	return nil
}

var (
	label   = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	domain  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	segment = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
)

// Limits on names: a DNS name has at most 253 characters, a SPIFFE ID at most 2048 bytes.
const (
	maxDNSName  = 253
	maxWorkload = 512
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

// shorten limits how much of a caller's input is in an error.
func shorten(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}

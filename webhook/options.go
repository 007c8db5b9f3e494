package webhook

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Form of the sidecar in a pod.
type Form string

// Forms of the sidecar.
const (
	// Native is an init container with restartPolicy Always: it starts before the user's init containers and ends after
	// all containers. It needs Kubernetes 1.29.
	Native Form = "native"
	// Container is an ordinary container, the first one.
	Container Form = "container"
)

// Options of Inject. They are the same for all pods; annotations say what differs from pod to pod.
type Options struct {
	// Sidecar is the form of the sidecar. Default Native.
	Sidecar Form
	// Image of kuma-init and kuma-sidecar. Default DefaultImage.
	Image string
	// Mesh of pods that name none. Default "default".
	Mesh string
	// ProbesMode of pods whose annotations and namespace name none. Default unified.
	ProbesMode mesh.ProbesMode
	// VirtualProbesPort is the agent's port for probes, unless the pod asks for another one or uses it itself. Default 9000. In the
	// per-port mode it is not used: there the first free port of the pod's range is.
	VirtualProbesPort int32
	// MetricsPort is the agent's port for Prometheus, unless the pod asks for another one. 0 is none. Default 5670.
	MetricsPort *int32
	// MetricsInclude are the prefixes of the names of Envoy's metrics that are served there. Default mesh.DefaultMetricFamilies.
	MetricsInclude []string
	// ControlPlane is the address of the control plane, host:port. Default "sonde-cp.sonde-system.svc:5678".
	ControlPlane string
	// ControlPlaneCA holds the PEM certificates of the control plane's serving CA, which become an annotation of the pod.
	// Default: the pod gets them from ca.crt in the ConfigMap sonde-ca of its namespace.
	ControlPlaneCA string
	// Resources of the sidecars, unless a pod or its namespace asks for others.
	Resources Resources
	// OwnLabelOnly leaves the label kuma.io/sidecar-injection to a Kuma in the same cluster: sonde.dev/sidecar-injection alone
	// says which pods are injected. It is the opposite of injection.kumaLabels in the control plane's configuration.
	OwnLabelOnly bool
	// ControlPlaneNamespace is where the control plane runs: no pod there is injected. Default "sonde-system".
	ControlPlaneNamespace string

	random io.Reader              // the source of the IDs of hooks; default crypto/rand
	strict func(mesh string) bool // whether a mesh accepts mTLS alone; nil where that is not known

	controlPlaneIPs []string // of its Service, for a pod that does not find it by its name

	demands demands // those of Resources
}

// Defaults that flags show.
const (
	DefaultImage        = "docker.io/sonde-mesh/sonde:dev"
	DefaultControlPlane = "sonde-cp." + DefaultNamespace + ".svc:5678"
	DefaultNamespace    = "sonde-system"
)

// InjectionKeys returns the labels and annotations that say whether a pod is injected. The first one that is there decides.
func (o *Options) InjectionKeys() []string {
	if o.OwnLabelOnly {
		return []string{mesh.LabelOwnInjection}
	}
	return []string{mesh.LabelOwnInjection, mesh.LabelInjection}
}

// complete sets the defaults and validates.
func (o *Options) complete() error {
	o.setDefaults()
	if err := o.Validate(); err != nil {
		return err
	}
	var err error
	o.demands, err = o.Resources.demands()
	return err
}

// setDefaults sets the default of each option that is not set.
func (o *Options) setDefaults() {
	if o.Sidecar == "" {
		o.Sidecar = Native
	}
	if o.Image == "" {
		o.Image = DefaultImage
	}
	if o.Mesh == "" {
		o.Mesh = mesh.DefaultMesh
	}
	if o.ProbesMode == "" {
		o.ProbesMode = mesh.ProbesUnified
	}
	if o.VirtualProbesPort == 0 {
		o.VirtualProbesPort = mesh.PortVirtualProbes
	}
	if o.MetricsPort == nil {
		o.MetricsPort = new(int32(mesh.PortPodMetrics))
	}
	if o.ControlPlane == "" {
		o.ControlPlane = DefaultControlPlane
	}
	if o.ControlPlaneNamespace == "" {
		o.ControlPlaneNamespace = DefaultNamespace
	}
	if o.random == nil {
		o.random = rand.Reader
	}
}

// Validate returns all violations, joined, with the defaults for what is not set. Each is a *mesh.FieldError that names a field of
// Options.
func (o Options) Validate() error {
	o.setDefaults()
	var errs []error
	refuse := func(field, value, allowed string) {
		errs = append(errs, &mesh.FieldError{Field: field, Value: value, Allowed: allowed})
	}
	if o.Sidecar != Native && o.Sidecar != Container {
		refuse("Sidecar", string(o.Sidecar), fmt.Sprintf("must be %s or %s", Native, Container))
	}
	if strings.ContainsFunc(o.Image, isBlank) {
		refuse("Image", o.Image, "must be the name of an image")
	}
	if !isMeshName(o.Mesh) {
		refuse("Mesh", o.Mesh, meshNameRule)
	}
	if _, err := mesh.ParseProbesMode(string(o.ProbesMode)); err != nil {
		refuse("ProbesMode", string(o.ProbesMode), err.Error())
	}
	if !isPort(o.VirtualProbesPort) {
		refuse("VirtualProbesPort", number(o.VirtualProbesPort), mesh.AllowedPort)
	}
	errs = append(errs, o.validateMetrics())
	if !isAddress(o.ControlPlane) {
		refuse("ControlPlane", o.ControlPlane, "must be host:port")
	}
	if err := checkCA(o.ControlPlaneCA); err != nil {
		errs = append(errs, &mesh.FieldError{Field: "ControlPlaneCA", Err: err})
	}
	if o.ControlPlaneNamespace != "" && len(validation.IsDNS1123Label(o.ControlPlaneNamespace)) > 0 {
		refuse("ControlPlaneNamespace", o.ControlPlaneNamespace, "must be the name of a namespace")
	}
	_, err := o.Resources.demands()
	return errors.Join(append(errs, err)...)
}

const meshNameRule = "must be the name of a mesh: at most 63 of a-z, 0-9 and -, none of them - at an end"

func isBlank(r rune) bool { return r <= ' ' || r == 0x7f }

// isAddress reports whether an address is host:port.
func isAddress(address string) bool {
	host, port, err := net.SplitHostPort(address)
	number, _ := strconv.Atoi(port) // 0 for what is no number
	return err == nil && host != "" && !strings.ContainsFunc(host, isBlank) && number >= 1 && number <= 65535
}

func isPort(n int32) bool { return n >= 1 && n <= 65535 }

func isMeshName(name string) bool { return len(validation.IsDNS1123Label(name)) == 0 }

// checkCA refuses anything but certificates, above all a key: every client that may get pods reads annotations.
func checkCA(text string) error {
	rest := []byte(text)
	for n := 1; len(bytes.TrimSpace(rest)) > 0; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return errors.New("must hold PEM certificates and nothing else")
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("block %d is %q: must hold PEM certificates and nothing else", n, block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("block %d: %w", n, err)
		}
	}
	return nil
}

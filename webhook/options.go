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
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Form of the sidecar in a pod.
type Form string

// Forms of the sidecar.
const (
	// Native is an init container with restartPolicy Always, which starts before the user's init containers and ends after
	// all containers. It needs Kubernetes 1.29.
	Native Form = "native"
	// Container is the first ordinary container.
	Container Form = "container"
)

// Options of Inject are the same for all pods. Annotations set options of a single pod.
type Options struct {
	// Sidecar is the form of the sidecar. Default Native.
	Sidecar Form
	// Image of kuma-init and kuma-sidecar. Default DefaultImage.
	Image string
	// Mesh of pods that do not name one. Default "default".
	Mesh string
	// ProbesMode of pods whose annotations and namespace do not set one. Default unified.
	ProbesMode mesh.ProbesMode
	// VirtualProbesPort is the agent's port for probes, unless the pod sets another one or uses this port itself. Default
	// 9000. Per-port mode uses the first free port of the pod's range instead.
	VirtualProbesPort int32
	// MetricsPort is the agent's port for Prometheus, unless the pod sets another one. 0 disables it. Default 5670.
	MetricsPort *int32
	// MetricsInclude are the name prefixes of Envoy's metrics at MetricsPort. Default mesh.DefaultMetricFamilies.
	MetricsInclude []string
	// CNI selects the pods whose connections the nodes' CNI plugin redirects. Default CNIOff.
	CNI CNI
	// ControlPlane is the address of the control plane, host:port. Default "sonde-cp.sonde-system.svc:5678".
	ControlPlane string
	// Hold is the agent's answer to the kubelet for a liveness failure that is held back, until the control plane sends
	// another setting. Default mesh.HoldErrored.
	Hold mesh.LivenessHold
	// ControlPlaneCA has the PEM certificates of the control plane's serving CA, for an annotation of the pod. Default:
	// the pod reads ca.crt in the ConfigMap sonde-ca of its namespace.
	ControlPlaneCA string
	// Resources of the sidecars, unless a pod or its namespace sets others.
	Resources Resources
	// OwnLabelOnly ignores the label kuma.io/sidecar-injection, for a Kuma in the same cluster: only
	// sonde.dev/sidecar-injection selects pods. It is the opposite of injection.kumaLabels in the control plane's
	// configuration.
	OwnLabelOnly bool
	// ControlPlaneNamespace is the control plane's namespace, whose pods are not injected. Default "sonde-system".
	ControlPlaneNamespace string

	random io.Reader                       // source of IDs of hooks and exec probes; default crypto/rand
	mode   func(name string) mesh.MTLSMode // mode of a mesh; nil if unknown

	controlPlaneIPs []string // addresses of the control plane's Service, for a pod that cannot resolve its name

	demands demands // parsed Resources
}

// Defaults of flags.
const (
	DefaultImage        = "docker.io/sonde-mesh/sonde:dev"
	DefaultControlPlane = "sonde-cp." + DefaultNamespace + ".svc:5678"
	DefaultNamespace    = "sonde-system"
)

// InjectionKeys returns the labels and annotations that select pods for injection. The first one that is set decides.
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

// setDefaults sets the default of each unset option.
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
	if o.CNI == "" {
		o.CNI = CNIOff
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

// Validate checks the options with their defaults, and returns all errors, joined. Each is a *mesh.FieldError that
// names a field of Options.
func (o Options) Validate() error {
	o.setDefaults()
	var errs []error
	refuse := func(field, value, allowed string) {
		errs = append(errs, &mesh.FieldError{Field: field, Value: value, Allowed: allowed})
	}
	if o.Sidecar != Native && o.Sidecar != Container {
		refuse("Sidecar", string(o.Sidecar), fmt.Sprintf("must be %s or %s", Native, Container))
	}
	if !slices.Contains([]CNI{CNIOff, CNINamespaces, CNIAll}, o.CNI) {
		refuse("CNI", string(o.CNI), fmt.Sprintf("must be %s, %s or %s", CNIOff, CNINamespaces, CNIAll))
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

const meshNameRule = "must be the name of a mesh: at most 63 of a-z, 0-9 and -, not beginning or ending with -"

func isBlank(r rune) bool { return r <= ' ' || r == 0x7f }

// isAddress reports whether an address is host:port.
func isAddress(address string) bool {
	host, port, err := net.SplitHostPort(address)
	number, _ := strconv.Atoi(port) // 0 if it is not a number
	return err == nil && host != "" && !strings.ContainsFunc(host, isBlank) && number >= 1 && number <= 65535
}

func isPort(n int32) bool { return n >= 1 && n <= 65535 }

func isMeshName(name string) bool { return len(validation.IsDNS1123Label(name)) == 0 }

// checkCA accepts only certificates, and rejects above all a private key: every client with the right to get pods can
// read the annotation.
func checkCA(text string) error {
	rest := []byte(text)
	for n := 1; len(bytes.TrimSpace(rest)) > 0; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return errors.New("must contain only PEM certificates")
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("block %d is %q: must contain only PEM certificates", n, block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("block %d: %w", n, err)
		}
	}
	return nil
}

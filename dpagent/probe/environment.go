package probe

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Environment is the configuration that the injector writes for a pod's probes. Errors name variables and fields.
type Environment struct {
	// Table is the value of KUMA_DATAPLANE_PROBES; "" is an empty table.
	Table string
	// InstanceIP is the value of INSTANCE_IP.
	InstanceIP string
	// Port is the virtual port. 0 means that no probes are answered; in mesh.ProbesPerPort mode, that no HTTP probes are.
	Port int
	// Mode in which the pod was injected. Default mesh.ProbesUnified.
	Mode mesh.ProbesMode
	// Hold is as in Options.
	Hold mesh.LivenessHold
}

func (e Environment) perPort() bool { return e.Mode == mesh.ProbesPerPort }

// Options returns the options of a Handler, except Registerer. The error joins all violations. Unknown keys of the
// table are logged.
func (e Environment) Options(logger *slog.Logger) (Options, error) {
	table, err := e.table(logger)
	errs := []error{err}
	ip, err := netip.ParseAddr(e.InstanceIP)
	switch {
	case e.InstanceIP == "":
		errs = append(errs, fmt.Errorf("%s: is required: the pod's address, on which its probes are answered",
			mesh.EnvInstanceIP))
	case err != nil || !isPodIP(ip):
		errs = append(errs, fmt.Errorf("%s: %q: must be the address of the pod, IPv4 or IPv6 without a zone",
			mesh.EnvInstanceIP, e.InstanceIP))
	}
	if e.Port < 0 || e.Port > 65535 || e.Port == 0 && !e.perPort() {
		errs = append(errs, &mesh.FieldError{Field: "Port", Value: strconv.Itoa(e.Port),
			Allowed: mesh.AllowedPort + ": the pod's probes use this port"})
	}
	if e.perPort() { // the kernel answers TCP probes
		table = slices.DeleteFunc(table, mesh.Probe.Redirected)
	}
	return Options{Table: table, PodIP: ip, Port: e.Port, PerPort: e.perPort(), Hold: e.Hold, Logger: logger},
		errors.Join(errs...)
}

// Needed reports whether there are probes to answer. In mesh.ProbesPerPort mode any probe is enough, even one that the
// kernel redirects to the application. It returns an error if the table is invalid.
func (e Environment) Needed() (bool, error) {
	table, err := e.table(nil)
	return len(table) > 0 && (e.Port != 0 || e.perPort()), err
}

func (e Environment) table(logger *slog.Logger) (mesh.ProbeTable, error) {
	table, unknown, err := mesh.ParseProbeTable(e.Table)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", mesh.EnvProbeTable, err)
	}
	if len(unknown) > 0 && logger != nil {
		logger.Warn("ignoring unknown keys of probes", "variable", mesh.EnvProbeTable, "keys", unknown)
	}
	return table, nil
}

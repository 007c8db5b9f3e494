package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/reach"
	"github.com/sonde-mesh/sonde/internal/settings"
	"github.com/sonde-mesh/sonde/webhook"
)

// injectFlagOf maps the fields of webhook.Options, which errors name, to flags.
var injectFlagOf = map[string]string{
	"Sidecar": "--sidecar", "Image": "--image", "Mesh": "--mesh", "VirtualProbesPort": "--virtual-probes-port",
	"ProbesMode":  "--virtual-probes-mode",
	"MetricsPort": "--sidecar-metrics-port", "MetricsInclude": "--sidecar-metrics-include",
	"ControlPlane": "--cp-address", "ControlPlaneCA": "--cp-ca-file",
	"Resources.CPU": "--sidecar-cpu", "Resources.CPULimit": "--sidecar-cpu-limit", "Resources.Memory": "--sidecar-memory",
	"Resources.MemoryLimit": "--sidecar-memory-limit",
}

// InjectFlags holds the flags of inject and probes explain, which replace the webhook's configuration in the control
// plane.
type InjectFlags struct {
	Files   Files
	caFile  string
	form    settings.Choice[webhook.Form]
	kuma    bool // read Kuma's label
	mode    settings.Choice[mesh.ProbesMode]
	options webhook.Options
}

// ModeFlag is the flag for the mode of probes, like the control plane's, and ModeUsage its help text.
const (
	ModeFlag  = "virtual-probes-mode"
	ModeUsage = "ports for probes of pods that set no mode: unified, all on one port, or per-port, with one port for each gRPC and TCP probe"
)

// Add adds the flags to cmd. mode is the name of the flag for the mode of probes.
func (f *InjectFlags) Add(cmd *cobra.Command, mode, usage string) {
	f.Files.add(cmd)
	f.form = settings.Choice[webhook.Form]{Value: webhook.Native, Among: []webhook.Form{webhook.Native, webhook.Container}}
	f.form.Add(cmd, "sidecar", "", "native, since Kubernetes 1.29, or container, an ordinary one")
	cmd.Flags().StringVar(&f.options.Image, "image", webhook.DefaultImage, "`IMAGE` of kuma-init and kuma-sidecar")
	cmd.Flags().StringVar(&f.options.Mesh, "mesh", mesh.DefaultMesh, "`MESH` of pods that set none")
	f.mode = NewModeChoice()
	f.mode.Add(cmd, mode, "", usage)
	cmd.Flags().Int32Var(&f.options.VirtualProbesPort, "virtual-probes-port", mesh.PortVirtualProbes,
		fmt.Sprintf("the agent's `PORT` for probes; if the pod uses this port, a free one from %d to %d", mesh.FirstSparePort, mesh.LastSparePort))
	f.options.Resources.AddFlags(cmd.Flags())
	f.options.AddMetricsFlags(cmd.Flags())
	f.options.ControlPlane = webhook.DefaultControlPlane
	cmd.Flags().Var(&reach.AddressFlag{Service: reach.Agents, To: &f.options.ControlPlane}, "cp-address",
		"`HOST:PORT` of the control plane")
	cmd.Flags().BoolVar(&f.kuma, "kuma-labels", true, "read kuma.io/sidecar-injection; set to false if a Kuma in the same cluster reads it, then only sonde.dev/sidecar-injection counts")
	cmd.Flags().StringVar(&f.caFile, "cp-ca-file", "",
		"`FILE` with the control plane's CA certificate (serving-ca.crt); default: the ConfigMap sonde-ca in the pod's namespace")
}

// Read returns the documents and the options. An invalid flag is a usage error.
func (f *InjectFlags) Read(cmd *cobra.Command) ([]Document, webhook.Options, error) {
	o := f.options
	o.Sidecar = f.form.Value
	o.OwnLabelOnly = !f.kuma
	o.ProbesMode = f.mode.Value
	if f.caFile != "" {
		pem, err := os.ReadFile(f.caFile)
		if err != nil {
			return nil, o, fmt.Errorf("--cp-ca-file: %w", err)
		}
		if len(bytes.TrimSpace(pem)) == 0 {
			return nil, o, fmt.Errorf("--cp-ca-file: no certificate in %s", f.caFile)
		}
		o.ControlPlaneCA = string(pem)
	}
	for _, flag := range []string{"image", "mesh", "virtual-probes-port"} {
		if value := cmd.Flags().Lookup(flag).Value.String(); value == "" || value == "0" {
			return nil, o, settings.Usagef("--%s: must not be %q", flag, value)
		}
	}
	if err := o.Validate(); err != nil {
		return nil, o, mesh.RenameFields(err, injectFlagOf)
	}
	all, errs, err := f.Files.read(cmd)
	return all, o, errors.Join(err, ReportErrors(cmd, f.Files.String(), errs))
}

// NewModeChoice returns the flag value for ModeFlag.
func NewModeChoice() settings.Choice[mesh.ProbesMode] {
	return settings.Choice[mesh.ProbesMode]{
		Value: mesh.ProbesUnified, Among: []mesh.ProbesMode{mesh.ProbesUnified, mesh.ProbesPerPort},
	}
}

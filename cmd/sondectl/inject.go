package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/reach"
	"github.com/sonde-mesh/sonde/internal/settings"
	"github.com/sonde-mesh/sonde/webhook"
)

// injectFlagOf has the flag of each field of webhook.Options that an error may name.
var injectFlagOf = map[string]string{
	"Sidecar": "--sidecar", "Image": "--image", "Mesh": "--mesh", "VirtualProbesPort": "--virtual-probes-port",
	"ProbesMode":   "--virtual-probes-mode",
	"ControlPlane": "--cp-address", "ControlPlaneCA": "--cp-ca-file",
	"Resources.CPU": "--sidecar-cpu", "Resources.CPULimit": "--sidecar-cpu-limit", "Resources.Memory": "--sidecar-memory", "Resources.MemoryLimit": "--sidecar-memory-limit",
}

// injectFlags are the flags of inject and probes explain: what the webhook gets from the control plane.
type injectFlags struct {
	files   manifestFiles
	caFile  string
	form    choice[webhook.Form]
	kuma    bool // read Kuma's label
	mode    choice[mesh.ProbesMode]
	options webhook.Options
}

// modeFlag is the flag for the mode of probes, as of the control plane.
const (
	modeFlag  = "virtual-probes-mode"
	modeUsage = "where the probes of pods that name no mode are asked: all on one port, or with a port for each gRPC and TCP probe"
)

// add adds the flags to cmd. mode is the name of the flag for the mode of probes.
func (f *injectFlags) add(cmd *cobra.Command, mode, usage string) {
	f.files.add(cmd)
	f.form = choice[webhook.Form]{value: webhook.Native, among: []webhook.Form{webhook.Native, webhook.Container}}
	f.form.add(cmd, "sidecar", "", "native, from Kubernetes 1.29 on, or an ordinary container")
	cmd.Flags().StringVar(&f.options.Image, "image", webhook.DefaultImage, "`IMAGE` of kuma-init and kuma-sidecar")
	cmd.Flags().StringVar(&f.options.Mesh, "mesh", mesh.DefaultMesh, "`MESH` of pods that name none")
	f.mode = newModeChoice()
	f.mode.add(cmd, mode, "", usage)
	cmd.Flags().Int32Var(&f.options.VirtualProbesPort, "virtual-probes-port", mesh.PortVirtualProbes,
		fmt.Sprintf("the agent's `PORT` for probes; if the pod uses it, one from %d to %d", mesh.FirstSparePort, mesh.LastSparePort))
	f.options.Resources.AddFlags(cmd.Flags())
	f.options.ControlPlane = webhook.DefaultControlPlane
	cmd.Flags().Var(&reach.AddressFlag{Service: reach.Agents, To: &f.options.ControlPlane}, "cp-address", "`HOST:PORT` of the control plane")
	cmd.Flags().BoolVar(&f.kuma, "kuma-labels", true, "read kuma.io/sidecar-injection; if false, it belongs to a Kuma in the same cluster, and sonde.dev/sidecar-injection alone counts")
	cmd.Flags().StringVar(&f.caFile, "cp-ca-file", "",
		"`FILE` with the control plane's CA certificate (serving-ca.crt); default: the ConfigMap sonde-ca in the pod's namespace")
}

// read returns the documents and the options. A bad flag is a usage error.
func (f *injectFlags) read(cmd *cobra.Command) ([]manifest, webhook.Options, error) {
	o := f.options
	o.Sidecar = f.form.value
	o.OwnLabelOnly = !f.kuma
	o.ProbesMode = f.mode.value
	if f.caFile != "" {
		pem, err := os.ReadFile(f.caFile)
		if err != nil {
			return nil, o, fmt.Errorf("--cp-ca-file: %w", err)
		}
		if len(bytes.TrimSpace(pem)) == 0 {
			return nil, o, fmt.Errorf("--cp-ca-file: there is no certificate in %s", f.caFile)
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
	all, errs, err := f.files.read(cmd)
	return all, o, errors.Join(err, reportErrors(cmd, f.files.String(), errs))
}

func (c *cli) inject() *cobra.Command {
	var flags injectFlags
	cmd := &cobra.Command{
		Use:   "inject -f FILE|DIR|-",
		Short: "Inject the sidecar into pods and rewrite their probes, without any server",
		Long: `Write the objects of a file as the control plane's admission webhook would make them: Pods, and the templates of
Deployments, StatefulSets, DaemonSets, ReplicaSets, ReplicationControllers, Jobs and CronJobs, alone or in Lists, get a
sidecar, and their probes and hooks ask its agent. Objects of other kinds are written as they are. No label is needed, but
kuma.io/sidecar-injection: disabled is obeyed, or sonde.dev/sidecar-injection, which takes precedence.

A probe that the agent cannot answer is left as it is, and a warning on stderr says why: "sondectl probes explain" shows all.
Injecting twice changes nothing. Comments in objects that are injected are lost.

Exit code 0: done, perhaps with warnings; 1: something is wrong, and nothing is on stdout.`,
		Example: `  sondectl inject -f web.yaml | kubectl apply -f -
  sondectl inject -f web.yaml --sidecar container --mesh shop --cp-ca-file serving-ca.crt
  kubectl get deployment web -o yaml | sondectl inject -f - | kubectl diff -f -`,
		Args: noOtherFiles,
	}
	flags.add(cmd, modeFlag, modeUsage)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		all, o, err := flags.read(cmd)
		if err != nil {
			return err
		}
		var errs []error
		for i, m := range all {
			text, err := injectManifest(cmd, m, o)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if i > 0 {
				c.out.WriteString("---\n")
			}
			c.out.Write(text)
		}
		return reportErrors(cmd, flags.files.String(), errs)
	}
	return cmd
}

// withPlace adds the place to each line of an error.
func withPlace(place string, err error) error {
	var errs []error
	for line := range strings.Lines(err.Error()) {
		errs = append(errs, fmt.Errorf("%s: error: %s", place, strings.TrimSpace(line)))
	}
	return errors.Join(errs...)
}

// reportErrors writes the errors to stderr, and returns an error with their number, nil if there are none.
func reportErrors(cmd *cobra.Command, path string, errs []error) error {
	for _, err := range errs {
		for line := range strings.Lines(err.Error()) {
			cmd.PrintErrf("%s\n", oneLine(line))
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("%s: %s", path, plural(len(errs), "error"))
	}
	return nil
}

// injectManifest injects all pods of a document. A document in which nothing changes is returned as it is.
func injectManifest(cmd *cobra.Command, m manifest, o webhook.Options) ([]byte, error) {
	if m.json == nil {
		return withNewline(m.text), nil
	}
	document, pods, err := findPods(m)
	if err != nil {
		return nil, err
	}
	changed := false
	var errs []error
	for _, p := range pods {
		injected, warnings, err := webhook.InjectJSON(p.json, o)
		if err != nil {
			errs = append(errs, withPlace(p.place, err))
			continue
		}
		for _, warning := range warnings {
			cmd.PrintErrf("%s: warning: %s\n", oneLine(p.place), oneLine(warning))
		}
		if bytes.Equal(injected, p.json) {
			continue
		}
		if misplaced := p.misplacedSwitch(o.InjectionKeys()); misplaced != "" {
			cmd.PrintErrf("%s: warning: %s has no effect here, but on the pod template: injected\n", oneLine(p.place), misplaced)
		}
		with, err := decodeObject(injected)
		if err != nil {
			return nil, withPlace(p.place, err)
		}
		changed = true
		p.replace(with)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if !changed && (!isJSON(m.text) || isYAML(m)) {
		return withNewline(m.text), nil
	}
	return encodeYAML(m.place, document)
}

func withNewline(text []byte) []byte {
	if bytes.HasSuffix(text, []byte("\n")) {
		return text
	}
	return append(bytes.Clone(text), '\n')
}

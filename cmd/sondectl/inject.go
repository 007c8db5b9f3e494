package main

import (
	"bytes"
	"errors"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/cmd/sondectl/manifest"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/webhook"
)

func (c *cli) inject() *cobra.Command {
	var flags manifest.InjectFlags
	cmd := &cobra.Command{
		Use:   "inject -f FILE|DIR|-",
		Short: "Inject the sidecar into pods and rewrite their probes, without any server",
		Long: `Write the objects of a file as the control plane's admission webhook would change them. Pods, and the templates of
Deployments, StatefulSets, DaemonSets, ReplicaSets, ReplicationControllers, Jobs and CronJobs, alone or in Lists, get a
sidecar, and their probes and hooks point to its agent. Other objects are unchanged. Pods need no label, but
kuma.io/sidecar-injection: disabled, or sonde.dev/sidecar-injection, which takes precedence, excludes a pod.

A probe that the agent cannot answer is unchanged, and a warning on stderr gives the reason; "sondectl probes explain"
shows all probes. The pod's annotation sonde.dev/guarded-liveness takes effect; the namespace's annotation is unknown
here. A second injection changes nothing. Comments in injected objects are lost.

Exit code 0: done, possibly with warnings; 1: failed, and stdout is empty.`,
		Example: `  sondectl inject -f web.yaml | kubectl apply -f -
  sondectl inject -f web.yaml --sidecar container --mesh shop --cp-ca-file serving-ca.crt
  kubectl get deployment web -o yaml | sondectl inject -f - | kubectl diff -f -`,
		Args: manifest.NoOtherFiles,
	}
	flags.Add(cmd, manifest.ModeFlag, manifest.ModeUsage)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		all, o, err := flags.Read(cmd)
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
		return manifest.ReportErrors(cmd, flags.Files.String(), errs)
	}
	return cmd
}

// injectManifest injects all pods of a document. It returns an unchanged document byte for byte.
func injectManifest(cmd *cobra.Command, m manifest.Document, o webhook.Options) ([]byte, error) {
	if m.JSON == nil {
		return withNewline(m.Text), nil
	}
	document, pods, err := manifest.FindPods(m)
	if err != nil {
		return nil, err
	}
	changed := false
	var errs []error
	for _, p := range pods {
		injected, warnings, err := webhook.InjectJSON(p.JSON, o)
		if err != nil {
			errs = append(errs, manifest.WithPlace(p.Place, err))
			continue
		}
		for _, warning := range warnings {
			cmd.PrintErrf("%s: warning: %s\n", printer.OneLine(p.Place), printer.OneLine(warning))
		}
		if bytes.Equal(injected, p.JSON) {
			continue
		}
		if misplaced := p.MisplacedSwitch(o.InjectionKeys()); misplaced != "" {
			cmd.PrintErrf("%s: warning: %s has no effect here, only on the pod template: injected\n", printer.OneLine(p.Place), misplaced)
		}
		with, err := manifest.DecodeObject(injected)
		if err != nil {
			return nil, manifest.WithPlace(p.Place, err)
		}
		changed = true
		p.Replace(with)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if !changed && (!manifest.IsJSON(m.Text) || manifest.IsYAML(m)) {
		return withNewline(m.Text), nil
	}
	return manifest.EncodeYAML(m.Place, document)
}

func withNewline(text []byte) []byte {
	if bytes.HasSuffix(text, []byte("\n")) {
		return text
	}
	return append(bytes.Clone(text), '\n')
}

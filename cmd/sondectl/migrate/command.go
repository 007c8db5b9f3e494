package migrate

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/manifest"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/webhook"
)

// migrateInput is the help text about the input of plan and status.
const migrateInput = `The command reads Namespaces, Pods, and the objects that create Pods, alone or in Lists, from files, without a server:
  kubectl get namespaces,deployments,statefulsets,daemonsets,jobs,cronjobs,pods -A -o json

A pod belongs to its top-level owner. If the owner is not in the file, the command derives the pod template from the
pod, with its probes as before injection. A ReplicaSet that is not in the file belongs to the Deployment with its name
without the pod-template-hash. Pods that have ended, or are being deleted, are ignored.

Modes of pods:
  sonde-unified, sonde-per-port   injected by Sonde
  sonde-not-rewritten             injected by Sonde with kuma.io/virtual-probes: disabled
  kuma-virtual-probes             a listener of Envoy answers httpGet probes (Kuma up to 2.8)
  kuma-application-probe-proxy    kuma-dp answers all probes (Kuma since 2.9)
  kuma-not-rewritten              a sidecar of Kuma, probes unchanged
  istio, istio-not-rewritten      a sidecar of Istio, with or without rewritten probes
  none                            no sidecar of these meshes
  unknown                         no pod in the file
  mixed                           the pods have different modes`

// Command returns sondectl migrate, whose subcommands write their output to out.
func Command(out *printer.Output) *cobra.Command {
	cmd := &cobra.Command{Use: "migrate", Short: "Plan and follow the migration of workloads to another mode of probes"}
	cmd.AddCommand(planCommand(out), statusCommand(out))
	return cmd
}

func planCommand(out *printer.Output) *cobra.Command {
	var flags manifest.InjectFlags
	cmd := &cobra.Command{
		Use:   "plan -f FILE|DIR|-",
		Short: "Show what Sonde, or another mode, would change for each probe, clashes, and existing problems",
		Long: `Show for each workload the mode of its pods, how mode --to would change each probe and hook, why the webhook would
reject new pods ("clash"), and problems that exist or will exist, each with a code.

` + migrateInput + `

WRITTEN   the probe in the manifest
NOW       the kubelet's request today, according to the pods
THEN      the kubelet's request to new pods

Codes of findings:
  probe-cannot-fail                 a tcpSocket probe that the sidecar accepts in the application's place
  probe-refused-by-mtls             an httpGet or grpc probe that is not rewritten: mode STRICT rejects it
  hook-not-rewritten                an httpGet hook that is not rewritten: mode STRICT rejects it
  https-virtual-probe-always-fails  Kuma's virtual probes answer HTTPS probes in plaintext
  port-round-mtls                   a port of the pod that answers without mTLS
  ambiguous-annotations             Kuma and Sonde interpret these annotations differently
  annotation-not-read               an annotation or label of Kuma or Istio that Sonde does not read, and what
                                    replaces it
  two-meshes                        two meshes would inject the workload, or have injected one of its pods
  probes-not-known                  a pod's sidecar does not record which probes were rewritten

Labels and annotations of pods and namespaces take precedence over --to, as they do over the control plane's
--virtual-probes-mode. A workload without a mesh and without a label that asks Sonde for a sidecar is only listed. To
check the namespace's label, the file must contain the Namespace.

Exit code 0: no findings and no clashes; 5: findings or clashes, with the plan on stdout; 1: failed.`,
		Example: `  kubectl get namespaces,deployments,statefulsets,daemonsets,jobs,cronjobs,pods -A -o json | sondectl migrate plan -f -
  sondectl migrate plan -f cluster.json --to per-port
  sondectl migrate plan -f namespaces.yaml -f manifests/ -R
  sondectl migrate plan -f cluster.json -o json | jq '.workloads[] | select(.clashes != [])'`,
		Args: manifest.NoOtherFiles,
	}
	flags.Add(cmd, "to", "the target mode")
	output := printer.AddFormat(cmd, printer.Table, printer.YAML, printer.JSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cluster, o, err := readCluster(cmd, &flags)
		if err != nil {
			return err
		}
		plan := cluster.Plan(o)
		err = printer.Write(out, output.Value, plan, func() { writePlan(out, plan) })
		if err == nil && plan.Findings+plan.Clashes > 0 {
			return &exit.Error{Code: exit.Findings, Err: errors.New(planSummary(plan))}
		}
		return err
	}
	return cmd
}

func statusCommand(out *printer.Output) *cobra.Command {
	var flags manifest.InjectFlags
	cmd := &cobra.Command{
		Use:   "status -f FILE|DIR|-",
		Short: "Show the modes of each workload's pods, and which pods must be recreated",
		Long: `Show for each workload the number of pods in each mode, ready pods, restarts of containers since the injection, and pods
that are still to roll.

` + migrateInput + `

A pod is still to roll, which means that it must be recreated, if Sonde injected it in a mode other than its pod
template, its namespace or --default-mode requests, or if the namespace or pod asks Sonde for a sidecar and the pod has
none.

If the webhook would reject new pods, the reason is below the workload.

Exit code 0: no pod is to roll, and the webhook would reject none; 5: otherwise, with the status on stdout; 1: failed.`,
		Example: `  kubectl get namespaces,deployments,statefulsets,daemonsets,jobs,cronjobs,pods -A -o json | sondectl migrate status -f -
  sondectl migrate status -f cluster.json --default-mode per-port -o json`,
		Args: manifest.NoOtherFiles,
	}
	flags.Add(cmd, "default-mode", "the mode of workloads that request none: --"+manifest.ModeFlag+" of the control plane")
	output := printer.AddFormat(cmd, printer.Table, printer.YAML, printer.JSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cluster, o, err := readCluster(cmd, &flags)
		if err != nil {
			return err
		}
		status := cluster.Status(o)
		err = printer.Write(out, output.Value, status, func() { writeStatus(out, status) })
		if err == nil && status.Total.ToRoll+status.Total.Refused > 0 {
			return &exit.Error{Code: exit.Findings, Err: errors.New(statusSummary(status))}
		}
		return err
	}
	return cmd
}

// readCluster reads the objects of files, and writes an error to stderr for each invalid one.
func readCluster(cmd *cobra.Command, flags *manifest.InjectFlags) (*Cluster, webhook.Options, error) {
	all, o, err := flags.Read(cmd)
	if err != nil {
		return nil, o, err
	}
	cluster := &Cluster{}
	var errs []error
	for _, m := range all {
		if m.JSON == nil {
			continue
		}
		document, err := manifest.DecodeObject(m.JSON)
		if err != nil {
			errs = append(errs, manifest.WithPlace(m.Place, err))
			continue
		}
		errs = append(errs, addObjects(cluster, m.Place, document)...)
	}
	if err := manifest.ReportErrors(cmd, flags.Files.String(), errs); err != nil {
		return nil, o, err
	}
	if cluster.Len() == 0 {
		return nil, o, fmt.Errorf("%s: contains no pods, and no objects that create pods", flags.Files.String())
	}
	return cluster, o, nil
}

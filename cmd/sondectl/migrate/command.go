package migrate

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/manifest"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/webhook"
)

// migrateInput says what plan and status read.
const migrateInput = `It reads Namespaces, Pods, and the objects that make Pods, alone or in Lists, from files and asks no server:
  kubectl get namespaces,deployments,statefulsets,daemonsets,jobs,cronjobs,pods -A -o json

A pod counts for the object that made it. If that is not in the file, the pod stands for it, with its probes as they were before
injection. A ReplicaSet that is not in the file belongs to the Deployment of its name without the pod-template-hash. Pods that have
ended, or are being deleted, do not count.

Modes of pods:
  sonde-unified, sonde-per-port   injected by Sonde
  sonde-not-rewritten             injected by Sonde with kuma.io/virtual-probes: disabled
  kuma-virtual-probes             httpGet probes by a listener of Envoy's (Kuma up to 2.8)
  kuma-application-probe-proxy    all probes by a port of kuma-dp (Kuma from 2.9 on)
  kuma-not-rewritten              a sidecar of Kuma's, and probes as written
  istio, istio-not-rewritten      a sidecar of Istio's; whether the pod was injected with rewritten probes
  none                            no sidecar of these
  unknown                         no pod in the file
  mixed                           pods differ`

// Command returns sondectl migrate, whose subcommands write their output to out.
func Command(out *bytes.Buffer) *cobra.Command {
	cmd := &cobra.Command{Use: "migrate", Short: "Move workloads from one way of answering probes to another, without losing a probe"}
	cmd.AddCommand(planCommand(out), statusCommand(out))
	return cmd
}

func planCommand(out *bytes.Buffer) *cobra.Command {
	var flags manifest.InjectFlags
	cmd := &cobra.Command{
		Use:   "plan -f FILE|DIR|-",
		Short: "Show what Sonde, or another mode, would change for each probe, what would clash, and what is wrong today",
		Long: `Show for each workload in which mode its pods are, what becomes of each of its probes and hooks in mode --to, why new pods would
be refused ("clash"), and what is wrong today, or will be, with a code.

` + migrateInput + `

WRITTEN   what the manifest says
NOW       what the kubelet asks today, from the pods
THEN      what the kubelet will ask new pods

Codes of findings:
  probe-cannot-fail                 a tcpSocket probe that the sidecar accepts in the application's place
  probe-refused-by-mtls             an httpGet or grpc probe that is not rewritten: STRICT refuses it
  hook-not-rewritten                an httpGet hook that is not rewritten: STRICT refuses it
  https-virtual-probe-always-fails  Kuma's virtual probes answer HTTPS probes in plaintext
  port-round-mtls                   a port of the pod at which something answers without mTLS
  ambiguous-annotations             Kuma and Sonde read these annotations differently
  annotation-not-read               an annotation or label of Kuma's or Istio's that Sonde does not read, and what takes its place
  two-meshes                        two meshes would inject the workload, or have injected a pod of it
  probes-not-known                  the sidecar of a pod does not say which probes were rewritten

Labels and annotations of pods and namespaces win over --to, as they do over --virtual-probes-mode of the control plane. A workload that
is in no mesh, and has no label that asks Sonde for a sidecar, is listed and left alone; without its Namespace in the file that is not known.

Exit code 0: nothing is wrong and nothing clashes; 5: there are findings or clashes, and the plan is on stdout; 1: failed.`,
		Example: `  kubectl get namespaces,deployments,statefulsets,daemonsets,jobs,cronjobs,pods -A -o json | sondectl migrate plan -f -
  sondectl migrate plan -f cluster.json --to per-port
  sondectl migrate plan -f namespaces.yaml -f manifests/ -R
  sondectl migrate plan -f cluster.json -o json | jq '.workloads[] | select(.clashes != [])'`,
		Args: manifest.NoOtherFiles,
	}
	flags.Add(cmd, "to", "the mode that is planned for")
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

func statusCommand(out *bytes.Buffer) *cobra.Command {
	var flags manifest.InjectFlags
	cmd := &cobra.Command{
		Use:   "status -f FILE|DIR|-",
		Short: "Show how many pods of each workload are in which mode, and which are still to roll",
		Long: `Show for each workload how many of its pods are in which mode, how many are ready, how often their containers were restarted
since they were injected, and how many are still to roll.

` + migrateInput + `

A pod is still to roll if Sonde injected it in another mode than its pod template, its namespace or --default-mode asks for, or if
namespace or pod ask Sonde for a sidecar and it has none of Sonde's.

Where the webhook would refuse new pods, the reason stands below the workload, as a clash does in a plan.

Exit code 0: no pod is to roll, and none would be refused; 5: otherwise, and the status is on stdout; 1: failed.`,
		Example: `  kubectl get namespaces,deployments,statefulsets,daemonsets,jobs,cronjobs,pods -A -o json | sondectl migrate status -f -
  sondectl migrate status -f cluster.json --default-mode per-port -o json`,
		Args: manifest.NoOtherFiles,
	}
	flags.Add(cmd, "default-mode", "the mode of workloads that ask for none: --"+manifest.ModeFlag+" of the control plane")
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

// readCluster reads the objects of a file. Each that cannot be read is an error on stderr.
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
		return nil, o, fmt.Errorf("%s: no pod, and no object that makes pods, found", flags.Files.String())
	}
	return cluster, o, nil
}

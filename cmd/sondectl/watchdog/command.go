// Package watchdog implements sondectl watchdog, which reads the verdicts and actions of sonde-watchdog from
// WatchedClusters, with the caller's rights at the API server.
package watchdog

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/cluster"
	"github.com/sonde-mesh/sonde/cmd/sondectl/names"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/settings"
	"github.com/sonde-mesh/sonde/watchdog/config"
)

// Command returns sondectl watchdog, whose subcommands write their output to out. The flags of all commands select the
// cluster.
func Command(out *printer.Output, in *cluster.Options) *cobra.Command {
	cmd := &cobra.Command{Use: "watchdog", Short: "Show clusters that sonde-watchdog watches, and pause it"}
	t := target{cluster.Objects{In: in}}
	cmd.AddCommand(statusCommand(out, t), explainCommand(out, t), pauseCommand(out, t, true),
		pauseCommand(out, t, false), importCommand(out))
	return cmd
}

// target selects the objects.
type target struct{ cluster.Objects }

func (t *target) add(cmd *cobra.Command) { t.Add(cmd.Flags(), "the WatchedClusters") }

// objects returns the WatchedClusters of one namespace, or of all.
func (t *target) objects(all bool) (dynamic.ResourceInterface, error) {
	in, namespace, err := t.Open()
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(in.Config)
	if err != nil {
		return nil, fmt.Errorf("create client for the API server: %w", err)
	}
	resource := client.Resource(v1alpha1.GroupVersion.WithResource("watchedclusters"))
	if all {
		return resource, nil
	}
	return resource.Namespace(namespace), nil
}

const statusHelp = `Show the state of the nodes in clusters that sonde-watchdog watches, and which dependants are scaled down.

NODES   seen, lost, or unknown; while it is unknown, nothing is scaled
SINCE   start of this state
SCALED  number of dependants that are scaled down, or being scaled down, of all

Lines below a cluster show the cause (of lost: one-zone or all; of unknown: api-server-away, throttled, unreadable, or
unheard), errors in its object, why the cluster cannot be probed, lost zones, and dependants that are being scaled.`

func statusCommand(out *printer.Output, t target) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:     "status [CLUSTER]",
		Short:   "Show the state of clusters, and scaled-down dependants",
		Long:    statusHelp,
		Example: "  sondectl watchdog status -A\n  sondectl watchdog status a -n shoot--a--b -o yaml",
		Args:    cobra.MaximumNArgs(1),
	}
	t.add(cmd)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "show the WatchedClusters of all namespaces")
	cmd.MarkFlagsMutuallyExclusive("all-namespaces", "namespace")
	output := printer.AddFormat(cmd, printer.Table, printer.YAML, printer.JSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if all && len(args) > 0 {
			return settings.Usagef("--all-namespaces: must not be set with a CLUSTER, which is in one namespace")
		}
		objects, err := t.objects(all)
		if err != nil {
			return err
		}
		clusters, err := read(cmd.Context(), objects, args)
		if err != nil {
			return err
		}
		return write(out, clusters, output.Value)
	}
	return cmd
}

// read returns the cluster with this name, or all.
func read(ctx context.Context, objects dynamic.ResourceInterface, args []string) ([]v1alpha1.WatchedCluster, error) {
	if len(args) > 0 {
		_, name, err := names.Parse(args[0], names.WatchedCluster)
		if err != nil {
			return nil, err
		}
		o, err := objects.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read WatchedCluster %q: %w", name, err)
		}
		return decode(*o)
	}
	list, err := objects.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list WatchedClusters: %w", err)
	}
	return decode(list.Items...)
}

func decode(objects ...unstructured.Unstructured) ([]v1alpha1.WatchedCluster, error) {
	clusters := make([]v1alpha1.WatchedCluster, len(objects))
	for i := range objects {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objects[i].Object, &clusters[i]); err != nil {
			return nil, fmt.Errorf("decode WatchedCluster: %w", err)
		}
	}
	return clusters, nil
}

func pauseCommand(out *printer.Output, t target, pause bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "pause CLUSTER",
		Short:   "Stop scaling the dependants of a cluster, in either direction",
		Long:    "Stop scaling the dependants of a cluster, in either direction, until sondectl watchdog resume. The watchdog still judges the cluster. Scaled-down dependants remain scaled down.",
		Example: "  sondectl watchdog pause a -n shoot--a--b",
		Args:    cobra.ExactArgs(1),
	}
	says := "is paused: nothing is scaled"
	if !pause {
		cmd.Use, cmd.Short, cmd.Long = "resume CLUSTER", "End sondectl watchdog pause", "End sondectl watchdog pause. The next probe decides which dependants are scaled."
		cmd.Example = "  sondectl watchdog resume a -n shoot--a--b"
		says = "is not paused"
	}
	t.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		_, name, err := names.Parse(args[0], names.WatchedCluster)
		if err != nil {
			return err
		}
		objects, err := t.objects(false)
		if err != nil {
			return err
		}
		patch := fmt.Appendf(nil, `{"spec":{"paused":%t}}`, pause)
		options := metav1.PatchOptions{FieldManager: "sondectl"}
		if _, err := objects.Patch(cmd.Context(), name, types.MergePatchType, patch, options); err != nil {
			return fmt.Errorf("update WatchedCluster %q: %w", name, err)
		}
		fmt.Fprintf(out, "%s %s\n", name, says)
		return nil
	}
	return cmd
}

func importCommand(out *printer.Output) *cobra.Command {
	var name, namespace, key string
	var local bool
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Convert a file of Gardener's Dependency Watchdog to a WatchedCluster",
		Long: `Print the WatchedCluster that corresponds to a prober file of Gardener's Dependency Watchdog, for kubectl apply. The
file may also be the ConfigMap with that file. No server is needed. Unknown keys and invalid values are errors.`,
		Example: `  sondectl watchdog import dep-config.yaml --name a -n shoot--a--b | kubectl apply -f -

  kubectl get configmap dependency-watchdog-prober-config -n garden -o yaml > prober.yaml
  sondectl watchdog import prober.yaml --name a -n shoot--a--b | kubectl apply -f -`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&name, "name", "config", "`NAME` of the WatchedCluster")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default",
		"`NAMESPACE` of the WatchedCluster, and of its dependants")
	cmd.Flags().BoolVar(&local, "local", false, "the file describes the cluster of the WatchedCluster itself; ignore the Secret in the file")
	cmd.Flags().StringVar(&key, "key", "", "`KEY` in the data of the ConfigMap; default its only key")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		spec, err := config.Import(args[0], key, namespace, local)
		if err != nil {
			return err
		}
		object := map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": "WatchedCluster",
			"metadata": map[string]any{"name": name, "namespace": namespace}, "spec": spec,
		}
		return printer.WriteYAML(out, object)
	}
	return cmd
}

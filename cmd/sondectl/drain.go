package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/cluster"
	"github.com/sonde-mesh/sonde/cmd/sondectl/names"
	"github.com/sonde-mesh/sonde/internal/settings"
)

const drainHelp = `A draining proxy keeps its connections, and gets no new traffic: the mesh prefers other proxies, and /healthz of its
port for load balancers (sonde.dev/lb-health-port) fails. Nothing restarts or stops. If a Service would have too few
proxies left (--min-serving of the control plane), its proxies keep serving, and an event of the Service reports that.

On Kubernetes, the command writes the annotation ` + mesh.AnnotationDrain + ` on the Node or Pod, with your rights in the cluster, and needs no control plane. Outside of Kubernetes, the control
plane stores the drain of dataplane/NAME, or of NAME without a kubeconfig.`

// drainTarget is the target of a drain.
type drainTarget struct {
	cli     *cli
	objects cluster.Objects // nodes and pods
	mesh    string          // of a dataplane
}

func (c *cli) newDrainTarget() drainTarget {
	return drainTarget{cli: c, objects: cluster.Objects{In: &c.cluster}}
}

func (d *drainTarget) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	d.objects.Add(flags, "a pod")
	d.cli.addMesh(cmd, &d.mesh, "`MESH` of a dataplane; default the only mesh that has it")
	cmd.ValidArgsFunction = d.completeTargets
}

func (c *cli) drain() *cobra.Command {
	target := c.newDrainTarget()
	var reason string
	cmd := &cobra.Command{
		Use:   "drain node/NAME|pod/NAME|dataplane/NAME|NAME",
		Short: "Keep new traffic from a proxy, or from all pods of a node",
		Long:  "Keep new traffic from a proxy, or from all pods of a node, until sondectl undrain.\n\n" + drainHelp,
		Example: `  sondectl drain node/worker-3 --reason "kernel update"
  sondectl drain pod/gateway-0 -n edge
  sondectl drain dataplane/edge-1 --reason "new disk"`,
		Args: oneTarget,
		RunE: func(cmd *cobra.Command, args []string) error {
			return target.set(cmd, args[0], &reason)
		},
	}
	target.add(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "human-readable `TEXT`, shortened to 256 bytes")
	return cmd
}

func (c *cli) undrain() *cobra.Command {
	target := c.newDrainTarget()
	cmd := &cobra.Command{
		Use:   "undrain node/NAME|pod/NAME|dataplane/NAME|NAME",
		Short: "Allow new traffic to a proxy, or to all pods of a node, again",
		Long: `End a drain by sondectl drain. A pod keeps draining while its node is drained or about to be removed, or while the pod
is being deleted; any proxy keeps draining while its agent stops.

` + drainHelp,
		Example: "  sondectl undrain node/worker-3",
		Args:    oneTarget,
		RunE: func(cmd *cobra.Command, args []string) error {
			return target.set(cmd, args[0], nil)
		},
	}
	target.add(cmd)
	return cmd
}

// drainKinds are the kinds of objects that drain accepts.
var drainKinds = []names.Kind{names.Node, names.Pod, names.Dataplane}

// oneTarget checks that there is one argument.
func oneTarget(_ *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return settings.Usagef("must be one node, pod or dataplane: node/NAME, pod/NAME, dataplane/NAME or NAME")
	}
	_, _, err := names.Parse(args[0], drainKinds...)
	return err
}

// set drains the target, or without a reason ends the drain: by the control plane for a dataplane, otherwise by the API
// server.
func (d *drainTarget) set(cmd *cobra.Command, target string, reason *string) error {
	kind, name, err := names.Parse(target, drainKinds...)
	if err != nil {
		return err
	}
	ofKubernetes := d.ofKubernetes(cmd)
	switch {
	case kind == names.Dataplane || kind == "" && d.mesh != "":
		if ofKubernetes != "" {
			return settings.Usagef("--%s: must not be set for a dataplane, and %q is one", ofKubernetes, target)
		}
		return d.ask(cmd, name, reason)
	case d.mesh != "":
		return settings.Usagef("--mesh: must only be set for a dataplane, and %q is a %s", target, kind)
	}
	client, namespace, err := d.client()
	if kind == "" && ofKubernetes == "" && errors.Is(err, cluster.ErrNoKubeconfig) {
		return d.ask(cmd, target, reason)
	}
	if err != nil {
		return err
	}
	return d.annotate(cmd, client, namespace, target, reason)
}

// ofKubernetes returns the first set flag that is only for nodes and pods, "" without one.
func (d *drainTarget) ofKubernetes(cmd *cobra.Command) string {
	for _, name := range []string{cluster.FlagObjectsContext, cluster.FlagObjectsNamespace} {
		if cmd.Flags().Changed(name) {
			return name
		}
	}
	return ""
}

// ask makes the control plane drain a dataplane, or without a reason end the drain.
func (d *drainTarget) ask(cmd *cobra.Command, name string, reason *string) error {
	request := &adminv1.DrainDataplaneRequest{Mesh: d.mesh, Name: name, Undo: reason == nil}
	if reason != nil {
		request.Reason = *reason
	}
	answer, err := ask(cmd.Context(), d.cli, adminv1.AdminServiceClient.DrainDataplane, request)
	if err == nil {
		d.cli.tellDrain("dataplane "+name+" of mesh "+answer.GetMesh(), reason != nil, answer.GetBefore())
	}
	return err
}

// tellDrain prints the result. before is the previous reason of the drain, "" without one.
func (c *cli) tellDrain(target string, drains bool, before string) {
	switch {
	case !drains && before == "":
		fmt.Fprintf(&c.out, "%s was not drained\n", target)
	case !drains:
		fmt.Fprintf(&c.out, "%s no longer drains\n", target)
	case before != "":
		fmt.Fprintf(&c.out, "%s drains; before: %s\n", target, before)
	default:
		fmt.Fprintf(&c.out, "%s drains\n", target)
	}
}

// resourceOf returns the API resource for a kind, nil if it is neither a node nor a pod.
func resourceOf(word string) *schema.GroupVersionResource {
	switch kind, _ := names.KindOf(word); kind {
	case names.Node:
		return &schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	case names.Pod:
		return &schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	default:
		return nil
	}
}

// client returns a client for the API server, and the namespace of pods.
func (d *drainTarget) client() (metadata.Interface, string, error) {
	in, namespace, err := d.objects.Open()
	if err != nil {
		return nil, "", err //nolint:wrapcheck // it says what was read
	}
	client, err := metadata.NewForConfig(in.Config)
	if err != nil {
		return nil, "", fmt.Errorf("create client for the API server: %w", err)
	}
	return client, namespace, nil
}

// annotate writes the annotation, or removes it without a reason.
func (d *drainTarget) annotate(
	cmd *cobra.Command, client metadata.Interface, namespace, target string, reason *string,
) error {
	resource, name, err := find(cmd.Context(), client, namespace, target)
	if err != nil {
		return err
	}
	objects := objectsOf(client, resource, namespace)
	object, err := objects.Get(cmd.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("read %s %q: %w%s", singular(resource), name, err, nearTarget(cmd.Context(), client, namespace, name, resource))
	}
	if err != nil {
		return fmt.Errorf("read %s %q: %w", singular(resource), name, err)
	}
	was, drained := object.Annotations[mesh.AnnotationDrain]
	title, before := singular(resource)+" "+name, ""
	if drained {
		before = mesh.DrainText(singular(resource), was)
	}
	if reason == nil && !drained {
		d.cli.tellDrain(title, false, before)
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		// not another object with that name
		"uid": object.UID, "annotations": map[string]*string{mesh.AnnotationDrain: reason},
	}})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	options := metav1.PatchOptions{FieldManager: "sondectl"}
	if _, err := objects.Patch(cmd.Context(), name, types.MergePatchType, patch, options); err != nil {
		return fmt.Errorf("annotate %s: %w", title, err)
	}
	d.cli.tellDrain(title, reason != nil, before)
	if resource.Resource == "pods" && object.Labels[mesh.LabelMesh] == "" {
		cmd.PrintErrf("note: %s has no label %s: if it has no sidecar, it still gets traffic\n", title, mesh.LabelMesh)
	}
	return nil
}

// find returns the node or pod that the user means. A name without a kind must match only one of the two.
func find(
	ctx context.Context, client metadata.Interface, namespace, target string,
) (schema.GroupVersionResource, string, error) {
	if kind, name, named := strings.Cut(target, "/"); named {
		return *resourceOf(kind), name, nil
	}
	node, pod := *resourceOf("node"), *resourceOf("pod")
	var found []schema.GroupVersionResource
	for _, r := range []schema.GroupVersionResource{node, pod} {
		_, err := objectsOf(client, r, namespace).Get(ctx, target, metav1.GetOptions{})
		switch {
		case err == nil:
			found = append(found, r)
		case !apierrors.IsNotFound(err):
			return node, "", fmt.Errorf("read %s %q: %w (node/NAME or pod/NAME reads only one of the two)", singular(r), target, err)
		}
	}
	switch len(found) {
	case 0:
		return node, "", fmt.Errorf("%q: not found as a node, nor as a pod in namespace %s%s", target, namespace, nearTarget(ctx, client, namespace, target, node, pod))
	case 1:
		return found[0], target, nil
	}
	return node, "",
		errors.New(target + ": both a node and a pod have this name: use node/" + target + " or pod/" + target)
}

// nearTarget returns the end of a not-found message: a node or pod with a similar name.
func nearTarget(
	ctx context.Context, client metadata.Interface, namespace, name string, of ...schema.GroupVersionResource,
) string {
	var known []string
	for _, r := range of {
		known = append(known, targetNames(ctx, client, r, namespace)...)
	}
	near, _ := mesh.Nearest(name, known)
	return didYouMean(near)
}

func objectsOf(client metadata.Interface, r schema.GroupVersionResource, namespace string) metadata.ResourceInterface {
	if r.Resource == "pods" {
		return client.Resource(r).Namespace(namespace)
	}
	return client.Resource(r)
}

func singular(r schema.GroupVersionResource) string { return strings.TrimSuffix(r.Resource, "s") }

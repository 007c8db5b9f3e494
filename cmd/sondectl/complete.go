package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/names"
)

// completionTimeout limits how long the shell waits for completions.
const completionTimeout = 2 * time.Second

// maxTargets limits the nodes or pods that are listed for completion.
const maxTargets = 500

// completeNames completes names of collections. Without a control plane it completes nothing.
func (c *cli) completeNames(filter *adminv1.Filter, of ...collection) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.names(cmd.Context(), filter, prefix, of...), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeMeshes completes names of meshes.
func (c *cli) completeMeshes(
	cmd *cobra.Command, _ []string, prefix string,
) ([]cobra.Completion, cobra.ShellCompDirective) {
	return c.names(cmd.Context(), &adminv1.Filter{}, prefix, meshes), cobra.ShellCompDirectiveNoFileComp
}

func (c *cli) names(ctx context.Context, filter *adminv1.Filter, prefix string, of ...collection) []cobra.Completion {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	head := "" // KIND/ if the prefix has it
	if word, _, named := strings.Cut(prefix, "/"); named {
		kind, _ := names.KindOf(word)
		head, of = word+"/", slices.DeleteFunc(slices.Clone(of), func(r collection) bool { return r.singular != kind })
	}
	var all []cobra.Completion
	for _, r := range of {
		found, err := c.list(ctx, r, filter)
		if err != nil {
			return nil
		}
		for _, row := range found.rows {
			if name := head + r.name(row); strings.HasPrefix(name, prefix) {
				all = append(all, name)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all) // objects of several meshes or kinds may have the same name
}

// completeTargets completes nodes and pods for sondectl drain. Without an API server it completes nothing.
func (d *drainTarget) completeTargets(
	cmd *cobra.Command, args []string, prefix string,
) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	kind, _, named := strings.Cut(prefix, "/")
	if !named {
		return []cobra.Completion{"node/", "pod/"}, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	resource := resourceOf(kind)
	client, namespace, err := d.client()
	if err != nil || resource == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	var targets []cobra.Completion
	for _, name := range targetNames(ctx, client, *resource, namespace) {
		if target := kind + "/" + name; strings.HasPrefix(target, prefix) {
			targets = append(targets, target)
		}
	}
	return targets, cobra.ShellCompDirectiveNoFileComp
}

// targetNames returns the names of the first nodes or pods, or none on an error.
func targetNames(
	ctx context.Context, client metadata.Interface, r schema.GroupVersionResource, namespace string,
) []string {
	found, err := objectsOf(client, r, namespace).List(ctx, metav1.ListOptions{Limit: maxTargets})
	if err != nil {
		return nil
	}
	names := make([]string, len(found.Items))
	for i := range found.Items {
		names[i] = found.Items[i].Name
	}
	return names
}

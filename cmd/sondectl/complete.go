package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// completeNames completes names of a collection. Without a control plane it completes nothing.
func (c *cli) completeNames(r collection, filter *adminv1.Filter) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.names(cmd.Context(), r, filter, prefix), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeMeshes completes names of meshes.
func (c *cli) completeMeshes(cmd *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return c.names(cmd.Context(), collections()[0], &adminv1.Filter{}, prefix), cobra.ShellCompDirectiveNoFileComp
}

func (c *cli) names(ctx context.Context, r collection, filter *adminv1.Filter, prefix string) []cobra.Completion {
	var found *listing
	err := c.call(ctx, func(ctx context.Context, api adminv1.AdminServiceClient) (err error) {
		found, err = r.list(ctx, api, filter)
		return err
	})
	if err != nil {
		return nil
	}
	column := 0
	if r.inMeshes {
		column = 1
	}
	var names []cobra.Completion
	for _, row := range found.rows {
		if name := row.cells[column]; strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names
}

package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
)

// toAPIServer is the only value of --to.
const toAPIServer = "apiserver"

func newLinkCommand(at at) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "link NODE up|down",
		Short: "connect a node to the others, or disconnect it",
		Long: "Connects a node to the others, or disconnects it.\n" +
			"With --to=apiserver, affects only the connections of the node's kubelet and kube-proxy to the API server, not of its pods.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := at(cmd)
			if err != nil {
				return err
			}
			node, err := strconv.Atoi(args[0])
			if err != nil {
				return fmt.Errorf("node %q: it must be a number", args[0])
			}
			if args[1] != "up" && args[1] != "down" {
				return fmt.Errorf("state %q of the link: it must be up or down", args[1])
			}
			set := c.SetLink
			if cmd.Flags().Changed("to") {
				if to != toAPIServer {
					return fmt.Errorf("--to %q: it must be %s; without it the node is cut off from all others", to, toAPIServer)
				}
				set = c.SetAPIServerLink
			}
			return set(cmd.Context(), node, args[1] == "up")
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "destination of the disconnected link instead of all other nodes: "+toAPIServer)
	return cmd
}

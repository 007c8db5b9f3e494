package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/drain"
	"github.com/sonde-mesh/sonde/dpagent/envoy"
	"github.com/sonde-mesh/sonde/dpagent/workdir"
)

func newDrainCommand() *cobra.Command {
	var begin bool
	var directory string
	cmd := &cobra.Command{
		Use:   "drain --begin --work-dir=DIRECTORY",
		Short: "Make an agent and its Envoy tell clients to go elsewhere",
		Long: `With --begin, responses of the agent's Envoy say from now on that they are the last ones of their connection, so that clients
which keep connections open move to another replica, and load balancers are told to send no new ones. Everything is still served. In a pod this is the preStop hook of the sidecar:
it is called when the pod begins to end, while the sidecar itself is only told to end after all other containers.

The whole drain begins with SIGTERM to the agent.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !begin {
				return &mesh.FieldError{Field: "--begin", Allowed: "is required: SIGTERM to the agent drains it until its end"}
			}
			if directory == "" {
				return &mesh.FieldError{Field: "--work-dir", Allowed: "is required: the --work-dir of the agent"}
			}
			return beginDrain(cmd.Context(), directory)
		},
	}
	cmd.Flags().BoolVar(&begin, "begin", false, "begin to drain, and return (required)")
	cmd.Flags().StringVar(&directory, "work-dir", "", "`directory` of the agent, as its own --work-dir says (required)")
	return cmd
}

func beginDrain(ctx context.Context, directory string) error {
	ctx, cancel := context.WithTimeout(ctx, drain.BeginTimeout)
	defer cancel()
	dir, err := workdir.Attach(directory)
	if err != nil {
		return &mesh.FieldError{Field: "--work-dir", Value: directory, Err: err}
	}
	// Load balancers are told by the agent, whatever Envoy says.
	err = dir.Write(workdir.FileEnding, nil)
	return errors.Join(err, drain.Begin(ctx, envoy.NewAdmin(dir.Socket(mesh.SocketAdmin)), newLogger(slog.LevelWarn)), dir.Close())
}

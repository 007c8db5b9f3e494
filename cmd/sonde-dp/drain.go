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
	"github.com/sonde-mesh/sonde/internal/logging"
)

func newDrainCommand() *cobra.Command {
	var begin bool
	var directory string
	cmd := &cobra.Command{
		Use:   "drain --begin --work-dir=DIRECTORY",
		Short: "Begin to drain an agent and its Envoy",
		Long: `With --begin, Envoy announces the end of each client connection in its next response, so that clients with persistent
connections move to another replica, and the agent makes load balancers send no new connections. The proxy still serves
all requests. In a pod, the sidecar's preStop hook runs this command when the pod begins to terminate. The kubelet stops
the sidecar itself only after all other containers.

SIGTERM to the agent begins the whole drain.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !begin {
				return &mesh.FieldError{Field: "--begin", Allowed: "is required: for the whole drain, send SIGTERM to the agent"}
			}
			if directory == "" {
				return &mesh.FieldError{Field: "--work-dir", Allowed: "is required: the value of the agent's --work-dir"}
			}
			return beginDrain(cmd.Context(), directory)
		},
	}
	cmd.Flags().BoolVar(&begin, "begin", false, "begin to drain, and return (required)")
	cmd.Flags().StringVar(&directory, "work-dir", "", "work `directory` of the agent: the value of its --work-dir (required)")
	return cmd
}

func beginDrain(ctx context.Context, directory string) error {
	ctx, cancel := context.WithTimeout(ctx, drain.BeginTimeout)
	defer cancel()
	dir, err := workdir.Attach(directory)
	if err != nil {
		return &mesh.FieldError{Field: "--work-dir", Value: directory, Err: err}
	}
	// The agent informs load balancers even if Envoy does not respond.
	err = dir.Write(workdir.FileEnding, nil)
	admin, log := envoy.NewAdmin(dir.Socket(mesh.SocketAdmin)), newLogger(slog.LevelWarn, logging.Auto)
	return errors.Join(err, drain.Begin(ctx, admin, log), dir.Close())
}

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/settings"
)

// pollEvery is how often --wait asks the control plane.
const pollEvery = 500 * time.Millisecond

func (c *cli) rotate() *cobra.Command {
	cmd := &cobra.Command{Use: "rotate", Short: "Replace what a mesh trusts"}
	cmd.AddCommand(c.rotateCA())
	return cmd
}

func (c *cli) rotateCA() *cobra.Command {
	request := &adminv1.RotateCARequest{}
	wait, statusOnly := false, false
	cmd := &cobra.Command{
		Use:   "ca",
		Short: "Replace the certificate authority of a mesh",
		Long: `Replace the certificate authority of a mesh, in three steps. No connection breaks.

  1  every proxy gets the bundle of the old and the new authority
  2  every proxy gets a certificate of the new authority
  3  every proxy gets the bundle of the new authority alone

The control plane does them by itself. A step begins when all proxies whose certificates have not expired have done the
one before. The proxies that it waits for are shown. --force does not wait for silent ones; other proxies will refuse
them until they reconnect and renew.

Without --status the command starts a rotation, or shows the progress of the current one. With --status it never starts
one, as a script that polls should not.

Exit code 0: done, or no rotation is in progress; 4: in progress.`,
		Example: `  sondectl rotate ca
  sondectl rotate ca --mesh shop --wait
  sondectl rotate ca --mesh shop --force
  sondectl rotate ca --mesh shop --status`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&request.Mesh, "mesh", mesh.DefaultMesh, "`MESH` whose authority is replaced")
	cmd.Flags().BoolVar(&request.Force, "force", false, "do not wait for silent proxies, in this step and the following ones")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until it is done, with progress on stderr")
	cmd.Flags().BoolVar(&statusOnly, "status", false, "show the progress of a rotation, and start none")
	cmd.MarkFlagsMutuallyExclusive("status", "force")
	settings.Must(cmd.RegisterFlagCompletionFunc("mesh", c.completeMeshes))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var rotation *adminv1.Rotation
		err := c.call(cmd.Context(), func(ctx context.Context, api adminv1.AdminServiceClient) (err error) {
			if statusOnly {
				rotation, err = api.GetRotation(ctx, &adminv1.GetRotationRequest{Mesh: request.GetMesh()})
			} else {
				rotation, err = api.RotateCA(ctx, request)
			}
			return err
		})
		if err == nil && wait {
			rotation, err = c.waitForRotation(cmd, request.GetMesh(), rotation)
		}
		if err != nil {
			return err
		}
		c.out.WriteString(rotationText(request.GetMesh(), rotation))
		if !isDone(rotation) {
			return &exit.Error{Code: exit.Unfinished, Err: fmt.Errorf("the rotation of mesh %q is under way", request.GetMesh())}
		}
		return nil
	}
	return cmd
}

func isDone(r *adminv1.Rotation) bool { return r.GetStep() == adminv1.Rotation_IDLE }

// waitForRotation polls until the rotation is done, and writes each change to stderr.
func (c *cli) waitForRotation(cmd *cobra.Command, meshName string, now *adminv1.Rotation) (*adminv1.Rotation, error) {
	ctx := cmd.Context()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for shown := (*adminv1.Rotation)(nil); !isDone(now); {
		if !proto.Equal(now, shown) {
			cmd.PrintErr(rotationText(meshName, now))
			shown = now
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the rotation of mesh %q: %w", meshName, ctx.Err())
		case <-ticker.C:
		}
		err := c.call(ctx, func(ctx context.Context, api adminv1.AdminServiceClient) (err error) {
			now, err = api.GetRotation(ctx, &adminv1.GetRotationRequest{Mesh: meshName})
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return now, nil
}

func rotationText(meshName string, r *adminv1.Rotation) string {
	var text strings.Builder
	steps := map[adminv1.Rotation_Step]string{
		adminv1.Rotation_IDLE:         "done: the newest authority signs, and is trusted alone",
		adminv1.Rotation_TRUST_BOTH:   "step 1 of 3: every proxy gets the bundle of the old and the new authority",
		adminv1.Rotation_RENEW_LEAVES: "step 2 of 3: every proxy gets a certificate of the new authority",
		adminv1.Rotation_TRUST_NEW:    "step 3 of 3: every proxy gets the bundle of the new authority alone",
	}
	step := steps[r.GetStep()]
	if step == "" {
		step = "a step that this sondectl does not know: " + r.GetStep().String()
	}
	fmt.Fprintf(&text, "mesh %s: %s\n", meshName, step)
	for _, proxy := range r.GetWaiting() {
		state := "connected"
		if proxy.GetSilent() {
			state = "silent"
		}
		if expires := timeUntil(proxy.GetCertificateExpires()); expires != "" {
			state += ", its certificate ends in " + expires
		}
		fmt.Fprintf(&text, "  waits for %s (%s)\n", printer.OneLine(proxy.GetName()), state)
	}
	for _, replica := range r.GetReplicas() {
		state := "connected"
		if replica.GetMissing() {
			state = "missing"
		}
		fmt.Fprintf(&text, "  waits for replica %s of the control plane (%s)\n", printer.OneLine(replica.GetName()), state)
	}
	return text.String()
}

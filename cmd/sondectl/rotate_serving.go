package main

import (
	"context"

	"github.com/spf13/cobra"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// What operators do about what holds up a rotation of the serving CA. docs/guides/serving-ca.md says more.
const (
	whatMissedNeed   = "delete its pod, or give its agent the new serving-ca.crt"
	whatOutdatedNeed = "upgrade its agent, or restart it if that is of this release"
	whatPausedNeeds  = "Replace serving-ca.crt wherever it was copied to, then: sondectl rotate serving-ca --continue"
)

var servingSteps = map[adminv1.Rotation_Step]string{
	adminv1.Rotation_IDLE:         "done: the newest authority signs, and is trusted alone",
	adminv1.Rotation_TRUST_BOTH:   "step 1 of 3: every proxy gets the old and the new authority",
	adminv1.Rotation_RENEW_LEAVES: "step 2 of 3: the new authority signs",
	adminv1.Rotation_TRUST_NEW:    "step 3 of 3: every proxy gets the new authority alone",
}

func (c *cli) rotateServingCA() *cobra.Command {
	request := &adminv1.RotateServingCARequest{}
	cmd := &cobra.Command{
		Use:   "serving-ca",
		Short: "Replace the certificate authority of the control plane",
		Long: `Replace the certificate authority that signs the certificate of the control plane itself, in three steps. Agents, their
Envoys, the API servers that call the webhook, and sondectl verify it.

  1  every proxy, new pods and the webhook configurations get the old and the new authority, and so does serving-ca.crt
  2  the new authority signs
  3  every proxy, new pods, the webhook configurations and serving-ca.crt get the new authority alone

Agents keep what they get in their work directories. An operator has to replace the copies of serving-ca.crt that
operators and machines have: the rotation stops before step 2, until --continue says that they are replaced.

Otherwise the control plane does the steps by itself. A step begins when all proxies whose certificates have not expired have
done the one before. What it waits for is shown. --force does not wait for silent proxies. Those that the new authority began
to sign without are shown as missed until they come back.

Without --status the command starts a rotation, or shows the progress of the current one. With --status it never starts
one, as a script that polls should not.

Exit code 0: done, or no rotation is in progress; 4: in progress, or stopped before step 2.`,
		Example: `  sondectl rotate serving-ca --wait
  sondectl rotate serving-ca --continue --wait
  sondectl rotate serving-ca --force
  sondectl rotate serving-ca --status`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&request.Proceed, "continue", false, "do not stop before step 2: all copies of serving-ca.crt are replaced")
	c.rotates(cmd, &request.Force, "wait until it is done, or stops before step 2, with progress on stderr", func() rotated {
		return rotated{"serving CA", "the serving CA", servingSteps}
	}, func(ctx context.Context) (*adminv1.Rotation, error) {
		return ask(ctx, c, adminv1.AdminServiceClient.GetServingRotation, &adminv1.GetServingRotationRequest{})
	}, func(ctx context.Context) (*adminv1.Rotation, error) {
		return ask(ctx, c, adminv1.AdminServiceClient.RotateServingCA, request)
	})
	cmd.MarkFlagsMutuallyExclusive("status", "continue")
	return cmd
}

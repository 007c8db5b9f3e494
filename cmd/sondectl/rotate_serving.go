package main

import (
	"context"

	"github.com/spf13/cobra"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// Advice about proxies that delay a rotation of the serving CA; see docs/guides/serving-ca.md.
const (
	whatMissedNeed   = "delete its pod, or give its agent the new serving-ca.crt"
	whatOutdatedNeed = "upgrade its agent, or restart it if it has this release"
	whatPausedNeeds  = "Replace all copies of serving-ca.crt, then: sondectl rotate serving-ca --continue"
)

var servingSteps = map[adminv1.Rotation_Step]string{
	adminv1.Rotation_IDLE:         "done: proxies trust only the newest authority, which signs",
	adminv1.Rotation_TRUST_BOTH:   "step 1 of 3: every proxy gets the old and the new authority",
	adminv1.Rotation_RENEW_LEAVES: "step 2 of 3: the new authority signs",
	adminv1.Rotation_TRUST_NEW:    "step 3 of 3: every proxy gets only the new authority",
}

func (c *cli) rotateServingCA() *cobra.Command {
	request := &adminv1.RotateServingCARequest{}
	cmd := &cobra.Command{
		Use:   "serving-ca",
		Short: "Replace the certificate authority of the control plane",
		Long: `Replace the certificate authority that signs the control plane's own certificate, in three steps. Agents, Envoys, API
servers that call the webhook, and sondectl verify this certificate.

  1  every proxy, new pods and the webhook configurations get the old and the new authority, and so does serving-ca.crt
  2  the new authority signs
  3  every proxy, new pods, the webhook configurations and serving-ca.crt get only the new authority

Agents store the authorities in their work directories. You must replace other copies of serving-ca.crt, such as on
operators' and other machines. The rotation stops before step 2 until --continue confirms that you have replaced them.

The control plane performs the other steps by itself. A step begins when all proxies with unexpired certificates have
completed the previous step. The output names the proxies that it waits for. --force does not wait for disconnected
proxies. Proxies that did not get the new authority before it began to sign are shown as missed until they reconnect.

Without --status, the command starts a rotation, or shows the progress of the current one. With --status, it never
starts one: use this in scripts that poll.

Exit code 0: done, or no rotation is in progress; 4: in progress, or stopped before step 2.`,
		Example: `  sondectl rotate serving-ca --wait
  sondectl rotate serving-ca --continue --wait
  sondectl rotate serving-ca --force
  sondectl rotate serving-ca --status`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&request.Proceed, "continue", false, "do not stop before step 2: confirms that all copies of serving-ca.crt are replaced")
	c.rotates(cmd, &request.Force, "wait until the rotation is done or stops before step 2, with progress on stderr", func() rotated {
		return rotated{"serving CA", "the serving CA", servingSteps}
	}, func(ctx context.Context) (*adminv1.Rotation, error) {
		return ask(ctx, c, adminv1.AdminServiceClient.GetServingRotation, &adminv1.GetServingRotationRequest{})
	}, func(ctx context.Context) (*adminv1.Rotation, error) {
		return ask(ctx, c, adminv1.AdminServiceClient.RotateServingCA, request)
	})
	cmd.MarkFlagsMutuallyExclusive("status", "continue")
	return cmd
}

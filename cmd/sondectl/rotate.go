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
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/run"
)

// pollEvery is the interval at which --wait polls the control plane.
const pollEvery = 500 * time.Millisecond

func (c *cli) rotate() *cobra.Command {
	cmd := &cobra.Command{Use: "rotate", Short: "Replace the CA of a mesh, or of the control plane"}
	cmd.AddCommand(c.rotateCA(), c.rotateServingCA())
	return cmd
}

func (c *cli) rotateCA() *cobra.Command {
	request := &adminv1.RotateCARequest{Mesh: mesh.DefaultMesh}
	cmd := &cobra.Command{
		Use:   "ca",
		Short: "Replace the certificate authority of a mesh",
		Long: `Replace the certificate authority of a mesh, in three steps. No connection breaks.

  1  every proxy gets the bundle of the old and the new authority
  2  every proxy gets a certificate of the new authority
  3  every proxy gets the bundle of only the new authority

The control plane performs the steps by itself. A step begins when all proxies with unexpired certificates have
completed the previous step. The output names the proxies that it waits for. --force does not wait for disconnected
proxies; other proxies will reject them until they reconnect and renew their certificates.

Without --status, the command starts a rotation, or shows the progress of the current one. With --status, it never
starts one: use this in scripts that poll.

Exit code 0: done, or no rotation is in progress; 4: in progress.`,
		Example: `  sondectl rotate ca
  sondectl rotate ca --mesh shop --wait
  sondectl rotate ca --mesh shop --force
  sondectl rotate ca --mesh shop --status`,
		Args: cobra.NoArgs,
	}
	c.addMesh(cmd, &request.Mesh, "`MESH` whose authority is replaced")
	c.rotates(cmd, &request.Force, "wait until the rotation is done, with progress on stderr", func() rotated {
		return rotated{"mesh " + request.GetMesh(), fmt.Sprintf("mesh %q", request.GetMesh()), meshSteps}
	}, func(ctx context.Context) (*adminv1.Rotation, error) {
		return ask(ctx, c, adminv1.AdminServiceClient.GetRotation, &adminv1.GetRotationRequest{Mesh: request.GetMesh()})
	}, func(ctx context.Context) (*adminv1.Rotation, error) {
		return ask(ctx, c, adminv1.AdminServiceClient.RotateCA, request)
	})
	return cmd
}

// rotates completes a command that starts a rotation with start, or shows it with get.
func (c *cli) rotates(cmd *cobra.Command, force *bool, waitUsage string, what func() rotated, get, start askRotation) {
	wait, statusOnly := false, false
	cmd.Flags().BoolVar(force, "force", false, "do not wait for disconnected proxies, in this step and the following ones")
	cmd.Flags().BoolVar(&wait, "wait", false, waitUsage)
	cmd.Flags().BoolVar(&statusOnly, "status", false, "show the progress of a rotation, without starting one")
	cmd.MarkFlagsMutuallyExclusive("status", "force")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		first := start
		if statusOnly {
			first = get
		}
		return c.showRotation(cmd, what(), first, get, wait)
	}
}

// rotated describes a rotation: the title of its table, its name in errors, and its steps in words.
type rotated struct {
	title, name string
	steps       map[adminv1.Rotation_Step]string
}

// askRotation requests the progress of a rotation.
type askRotation func(context.Context) (*adminv1.Rotation, error)

// showRotation shows the result of first, or with wait the final result of get.
func (c *cli) showRotation(cmd *cobra.Command, what rotated, first, get askRotation, wait bool) error {
	rotation, err := first(cmd.Context())
	if err == nil && wait {
		rotation, err = waitForRotation(cmd, what, get, rotation)
	}
	if err != nil {
		return err
	}
	c.out.WriteString(what.text(rotation))
	switch {
	case isDone(rotation):
		return nil
	case rotation.GetPaused():
		return &exit.Error{Code: exit.Unfinished, Err: fmt.Errorf("the rotation of %s has stopped before step 2, as intended: continue with --continue", what.name)}
	}
	return &exit.Error{Code: exit.Unfinished, Err: fmt.Errorf("the rotation of %s is in progress", what.name)}
}

func isDone(r *adminv1.Rotation) bool { return r.GetStep() == adminv1.Rotation_IDLE }

// waitForRotation polls until the rotation is done or paused, and writes each change to stderr.
func waitForRotation(
	cmd *cobra.Command, what rotated, get askRotation, now *adminv1.Rotation,
) (*adminv1.Rotation, error) {
	ctx := cmd.Context()
	for shown := (*adminv1.Rotation)(nil); !isDone(now) && !now.GetPaused(); {
		if !proto.Equal(now, shown) {
			cmd.PrintErr(what.text(now))
			shown = now
		}
		err := run.Sleep(ctx, pollEvery)
		if err != nil {
			return nil, fmt.Errorf("wait for rotation of %s: %w", what.name, err)
		}
		if now, err = get(ctx); err != nil {
			return nil, err
		}
	}
	return now, nil
}

var meshSteps = map[adminv1.Rotation_Step]string{
	adminv1.Rotation_IDLE:         "done: proxies trust only the newest authority, which signs",
	adminv1.Rotation_TRUST_BOTH:   "step 1 of 3: every proxy gets the bundle of the old and the new authority",
	adminv1.Rotation_RENEW_LEAVES: "step 2 of 3: every proxy gets a certificate of the new authority",
	adminv1.Rotation_TRUST_NEW:    "step 3 of 3: every proxy gets the bundle of only the new authority",
}

func (what rotated) text(r *adminv1.Rotation) string {
	var text strings.Builder
	step := what.steps[r.GetStep()]
	if step == "" {
		step = "unknown step: " + r.GetStep().String()
	}
	fmt.Fprintf(&text, "%s: %s\n", what.title, step)
	for _, proxy := range r.GetWaiting() {
		fmt.Fprintf(&text, "  waits for %s (%s)\n", proxyName(proxy), proxyState(proxy))
	}
	for _, other := range r.GetOthers() {
		fmt.Fprintf(&text, "  waits: %s\n", printer.OneLine(other))
	}
	for _, proxy := range r.GetMissed() {
		fmt.Fprintf(&text, "  missed %s: it is disconnected, and probably does not trust the new authority: %s\n", proxyName(proxy), whatMissedNeed)
	}
	if r.GetPaused() {
		fmt.Fprintf(&text, "  paused: all proxies have completed this step. %s\n", whatPausedNeeds)
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

// proxyName includes the mesh unless the rotation is of one mesh.
func proxyName(p *adminv1.Waiting) string {
	if p.GetMesh() == "" {
		return printer.OneLine(p.GetName())
	}
	return printer.OneLine(mesh.MakeID(p.GetMesh(), p.GetName()))
}

func proxyState(p *adminv1.Waiting) string {
	state := "connected"
	if p.GetSilent() {
		state = "silent"
	}
	if p.GetOutdated() {
		state += ", it does not support the rotation: " + whatOutdatedNeed
	}
	if expires := describe.Until(p.GetCertificateExpires()); expires != "" {
		state += ", its certificate expires in " + expires
	}
	return state
}

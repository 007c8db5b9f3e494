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
)

// pollEvery is how often --wait asks the control plane.
const pollEvery = 500 * time.Millisecond

func (c *cli) rotate() *cobra.Command {
	cmd := &cobra.Command{Use: "rotate", Short: "Replace what a mesh trusts, or what clients of the control plane do"}
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
	c.addMesh(cmd, &request.Mesh, "`MESH` whose authority is replaced")
	c.rotates(cmd, &request.Force, "wait until it is done, with progress on stderr", func() rotated {
		return rotated{"mesh " + request.GetMesh(), fmt.Sprintf("mesh %q", request.GetMesh()), meshSteps}
	}, func(ctx context.Context) (*adminv1.Rotation, error) {
		return ask(ctx, c, adminv1.AdminServiceClient.GetRotation, &adminv1.GetRotationRequest{Mesh: request.GetMesh()})
	}, func(ctx context.Context) (*adminv1.Rotation, error) {
		return ask(ctx, c, adminv1.AdminServiceClient.RotateCA, request)
	})
	return cmd
}

// rotates completes a command that starts a rotation by start, or looks at it by get.
func (c *cli) rotates(cmd *cobra.Command, force *bool, waitUsage string, what func() rotated, get, start askRotation) {
	wait, statusOnly := false, false
	cmd.Flags().BoolVar(force, "force", false, "do not wait for silent proxies, in this step and the following ones")
	cmd.Flags().BoolVar(&wait, "wait", false, waitUsage)
	cmd.Flags().BoolVar(&statusOnly, "status", false, "show the progress of a rotation, and start none")
	cmd.MarkFlagsMutuallyExclusive("status", "force")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		first := start
		if statusOnly {
			first = get
		}
		return c.showRotation(cmd, what(), first, get, wait)
	}
}

// rotated is what a rotation replaces: how its table begins, what errors call it, and its steps in words.
type rotated struct {
	title, name string
	steps       map[adminv1.Rotation_Step]string
}

// askRotation asks the control plane for the progress of a rotation.
type askRotation func(context.Context) (*adminv1.Rotation, error)

// showRotation shows what first returns, or with wait what get returns when there is nothing more to wait for.
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
		return &exit.Error{Code: exit.Unfinished, Err: fmt.Errorf("the rotation of %s has stopped before step 2, as it should, and goes on with --continue", what.name)}
	}
	return &exit.Error{Code: exit.Unfinished, Err: fmt.Errorf("the rotation of %s is under way", what.name)}
}

func isDone(r *adminv1.Rotation) bool { return r.GetStep() == adminv1.Rotation_IDLE }

// waitForRotation polls until the rotation is done, or waits for its operator, and writes each change to stderr.
func waitForRotation(cmd *cobra.Command, what rotated, get askRotation, now *adminv1.Rotation) (*adminv1.Rotation, error) {
	ctx := cmd.Context()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for shown := (*adminv1.Rotation)(nil); !isDone(now) && !now.GetPaused(); {
		if !proto.Equal(now, shown) {
			cmd.PrintErr(what.text(now))
			shown = now
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the rotation of %s: %w", what.name, ctx.Err())
		case <-ticker.C:
		}
		var err error
		if now, err = get(ctx); err != nil {
			return nil, err
		}
	}
	return now, nil
}

var meshSteps = map[adminv1.Rotation_Step]string{
	adminv1.Rotation_IDLE:         "done: the newest authority signs, and is trusted alone",
	adminv1.Rotation_TRUST_BOTH:   "step 1 of 3: every proxy gets the bundle of the old and the new authority",
	adminv1.Rotation_RENEW_LEAVES: "step 2 of 3: every proxy gets a certificate of the new authority",
	adminv1.Rotation_TRUST_NEW:    "step 3 of 3: every proxy gets the bundle of the new authority alone",
}

func (what rotated) text(r *adminv1.Rotation) string {
	var text strings.Builder
	step := what.steps[r.GetStep()]
	if step == "" {
		step = "a step that this sondectl does not know: " + r.GetStep().String()
	}
	fmt.Fprintf(&text, "%s: %s\n", what.title, step)
	for _, proxy := range r.GetWaiting() {
		fmt.Fprintf(&text, "  waits for %s (%s)\n", proxyName(proxy), proxyState(proxy))
	}
	for _, other := range r.GetOthers() {
		fmt.Fprintf(&text, "  waits for this: %s\n", printer.OneLine(other))
	}
	for _, proxy := range r.GetMissed() {
		fmt.Fprintf(&text, "  missed %s: it is away, and may not trust the new authority: %s\n", proxyName(proxy), whatMissedNeed)
	}
	if r.GetPaused() {
		fmt.Fprintf(&text, "  paused: all proxies have done this step. %s\n", whatPausedNeeds)
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

// proxyName names the mesh, too, where the rotation is not of one mesh.
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
		state += ", it cannot follow: " + whatOutdatedNeed
	}
	if expires := describe.Until(p.GetCertificateExpires()); expires != "" {
		state += ", its certificate ends in " + expires
	}
	return state
}

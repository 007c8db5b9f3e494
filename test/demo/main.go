// Command demo shows a mesh on one machine, with real Envoys, and checks each step that it shows.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/sonde-mesh/sonde/test/demo/board"
	"github.com/sonde-mesh/sonde/test/harness"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out *os.File) (err error) {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	keep := flags.Bool("keep", false, "keep running until Ctrl-C, and print commands to try")
	envoy := flags.String("envoy", "", "path of Envoy; the other programs are then taken from bin as they are (default: build them, and find or download Envoy)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	b := board.New(out)
	programs, err := get(ctx, b, *envoy)
	if err != nil {
		return err
	}
	b.Head("Sonde: a mesh on this machine")
	s := &scene{board: b}
	defer func() {
		if err != nil && s.machine != nil && ctx.Err() == nil {
			b.Print("\nThe end of each log:\n" + s.machine.Logs(8))
		}
		b.Progress("ending every process")
		err = errors.Join(err, s.close())
		b.Progress("")
	}()
	for _, step := range s.steps(programs) {
		b.Step(ctx, step.title, step.bounded)
		if s.machine == nil || s.b == nil {
			break // the mesh did not start
		}
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	b.Foot()
	if b.Failed > 0 {
		return fmt.Errorf("%d of %d steps failed", b.Failed, b.Steps)
	}
	b.Print(shown)
	if *keep {
		return s.keep(ctx)
	}
	return nil
}

// shown is what the steps have shown if all passed.
const shown = `
  Three of six probes of Envoy's port got a false verdict, while with Sonde all six got the same verdict as without a
  mesh. No call failed while a replica drained, another one died, a file was broken and the control plane was down.`

// get returns the programs of the mesh. It does not rebuild the programs of make demo, because checking takes
// seconds.
func get(ctx context.Context, b *board.Board, envoy string) (harness.Programs, error) {
	if envoy != "" {
		programs, err := harness.Built()
		programs.Envoy = envoy
		return programs, err
	}
	b.Progress("building the programs and getting Envoy")
	return harness.Build(ctx, false)
}

// keep restores the mesh, prints hints and waits for Ctrl-C.
func (s *scene) keep(ctx context.Context) error {
	for _, p := range s.b[1:] {
		s.board.Progress("starting " + p.Name + " again")
		if err := s.restart(ctx, p); err != nil {
			return err
		}
	}
	dashboard, _, err := s.machine.Dashboard(ctx)
	if err != nil {
		return err
	}
	s.board.Progress("")
	root, err := harness.Root()
	if err != nil {
		return err
	}
	s.board.Print(s.hints(root, dashboard).String())
	<-ctx.Done()
	return nil
}

// Command demo shows a mesh on one machine, with real Envoys, and checks each step that it shows.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

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
	keep := flags.Bool("keep", false, "run on until Ctrl-C, and print what to try")
	if err := flags.Parse(args); err != nil {
		return err
	}
	b := newBoard(out)
	b.progress("building the programs and getting Envoy")
	programs, err := harness.Build(ctx, false)
	if err != nil {
		return err
	}
	b.head()
	s := &scene{board: b}
	defer func() {
		if err != nil && s.machine != nil && ctx.Err() == nil {
			b.print("\nThe end of each log:\n" + s.machine.Logs(8))
		}
		b.progress("ending every process")
		err = errors.Join(err, s.close())
		b.progress("")
	}()
	b.step(ctx, "control plane, A and three replicas of B start", func(ctx context.Context) ([]string, error) {
		return s.start(ctx, programs)
	})
	if b.failed == 0 {
		for _, step := range s.steps() {
			b.step(ctx, step.title, step.do)
		}
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	b.foot()
	if b.failed > 0 {
		return fmt.Errorf("%d of %d steps did not hold", b.failed, b.steps)
	}
	if *keep {
		return s.keep(ctx)
	}
	return nil
}

// keep makes the mesh whole again, prints what to try and waits for Ctrl-C.
func (s *scene) keep(ctx context.Context) error {
	for _, p := range s.b[1:] {
		s.board.progress("starting " + p.Name + " again")
		if err := s.restart(ctx, p); err != nil {
			return err
		}
	}
	s.board.progress("")
	s.board.print(s.hints())
	<-ctx.Done()
	return nil
}

// board writes the table.
type board struct {
	out io.Writer
	// terminal has lines that can be written again.
	terminal bool
	colour   bool
	started  time.Time

	steps, failed int
}

func newBoard(out *os.File) *board {
	info, err := out.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	return &board{out: out, terminal: terminal, colour: terminal && os.Getenv("NO_COLOR") == "", started: time.Now()}
}

const (
	rowFormat  = "  %s  %6s  %s\n"
	seenFormat = "                    %s\n"
)

func (b *board) print(text string) {
	_, _ = fmt.Fprintln(b.out, text) // if the terminal has gone, there is nobody to tell
}

// progress says what is waited for, in a line that the next one replaces; "" clears it.
func (b *board) progress(text string) {
	switch {
	case b.terminal && text == "":
		_, _ = fmt.Fprint(b.out, "\r\x1b[K")
	case b.terminal:
		_, _ = fmt.Fprintf(b.out, "\r\x1b[K  ... %.90s", text)
	case text != "":
		_, _ = fmt.Fprintf(b.out, "  ... %s\n", text)
	}
}

func (b *board) head() {
	b.progress("")
	b.started = time.Now()
	b.print("Sonde: a mesh on this machine\n")
	_, _ = fmt.Fprintf(b.out, rowFormat, b.paint("", "RESULT"), "TIME", "STEP, and what was seen")
}

func (b *board) foot() {
	b.print(fmt.Sprintf("\n  %d of %d steps held, in %.0f s.", b.steps-b.failed, b.steps, time.Since(b.started).Seconds()))
}

// paint pads a result to its column and colours it, 32 for green, 31 for red.
func (b *board) paint(colour, text string) string {
	text = fmt.Sprintf("%-6s", text)
	if colour == "" || !b.colour {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// step does one step and writes its row: what was seen, a line for each fact, and then what was amiss.
func (b *board) step(ctx context.Context, title string, do func(context.Context) ([]string, error)) {
	if ctx.Err() != nil {
		return
	}
	b.steps++
	if b.terminal {
		b.progress(title)
	}
	started := time.Now()
	seen, err := do(ctx)
	if ctx.Err() != nil {
		return
	}
	result := b.paint("32", "held")
	if err != nil {
		b.failed++
		result, seen = b.paint("31", "FAILED"), append(seen, err.Error())
	}
	b.progress("")
	_, _ = fmt.Fprintf(b.out, rowFormat, result, fmt.Sprintf("%.1f s", time.Since(started).Seconds()), title)
	for _, line := range seen {
		_, _ = fmt.Fprintf(b.out, seenFormat, line)
	}
}

// Command deflake runs the tests of changed packages and their importers, in many copies at once at low priority, so
// that tests that depend on the machine's speed fail. It only runs fast packages, see package tier.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/tools/tier"
)

const (
	// limit bounds the time of all runs.
	limit = 2 * time.Minute
	// maxPackages limits the number of packages.
	maxPackages = 20
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "deflake:", err)
		os.Exit(1)
	}
}

// deflaker runs the tests of packages.
type deflaker struct {
	*repository
	out  io.Writer
	runs int
}

func (d *deflaker) say(format string, args ...any) {
	_, _ = fmt.Fprintf(d.out, format+"\n", args...)
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("deflake", flag.ContinueOnError)
	root := flags.String("root", "..", "top `directory` of the repository")
	base := flags.String("base", "", "`commit` to compare with (default: merge base with origin/main, else with main, else HEAD~1)")
	one := flags.String("package", "", "run only this `directory`, changed or not, without a time limit")
	runs := flags.Int("runs", copies, "`number` of runs of each package, 8 at once")
	list := flags.Bool("list", false, "only print the packages")
	if err := flags.Parse(args); err != nil {
		return err
	}
	top, err := filepath.Abs(*root)
	if err != nil {
		return err
	}
	d := &deflaker{repository: &repository{root: top, run: output}, out: out, runs: *runs}
	all, err := d.packages(ctx, flags.Args())
	if err != nil {
		return err
	}
	if *one != "" {
		name := filepath.ToSlash(filepath.Clean(*one))
		i := slices.IndexFunc(all, func(p *pkg) bool { return p.directory == name && p.tests })
		if i < 0 {
			return fmt.Errorf("no package with tests in %s: name its directory from the top of the repository", name)
		}
		return d.deflake(ctx, all[i:i+1], 0)
	}
	chosen, err := d.choose(ctx, all, *base)
	if err != nil {
		return err
	}
	if *list {
		for _, p := range chosen {
			d.say("%s", p.directory)
		}
		return nil
	}
	return d.deflake(ctx, chosen, limit)
}

// choose returns the packages to run, and prints the packages that it omits.
func (d *deflaker) choose(ctx context.Context, all []*pkg, asked string) ([]*pkg, error) {
	tiers, err := tier.Read(d.root)
	if err != nil {
		return nil, err
	}
	commit, name, err := d.base(ctx, asked)
	if err != nil {
		return nil, err
	}
	files, err := d.changed(ctx, commit)
	if err != nil {
		return nil, err
	}
	changed := owners(all, files)
	d.say("base is %.12s (%s): %d files in %d packages differ", commit, name, len(files), len(changed))
	chosen := affected(all, changed)
	var real []*pkg
	chosen = slices.DeleteFunc(chosen, func(p *pkg) bool {
		isReal := tiers.Real(p.directory)
		if isReal {
			real = append(real, p)
		}
		return isReal
	})
	d.leaveOut("real tests", real)
	if len(chosen) > maxPackages {
		d.leaveOut(fmt.Sprintf("over %d packages", maxPackages), chosen[maxPackages:])
		chosen = chosen[:maxPackages]
	}
	return chosen, nil
}

func (d *deflaker) leaveOut(why string, all []*pkg) {
	if len(all) == 0 {
		return
	}
	var names []string
	for _, p := range all {
		names = append(names, p.directory)
	}
	d.say("left out, %s: %s", why, strings.Join(names, " "))
}

// deflake compiles the tests of packages, and then runs them for at most this time; 0 means no limit.
func (d *deflaker) deflake(ctx context.Context, chosen []*pkg, most time.Duration) (err error) {
	race, err := d.hasCompiler(ctx)
	if err != nil {
		return err
	}
	processors := "1" // docs/decisions/090-one-processor-with-race.md
	if !race {
		d.say("no C compiler, running without the race detector")
		processors = "1,4"
	}
	directory, err := os.MkdirTemp("", "sonde-deflake-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	c := &compiler{repository: d.repository, race: race, directory: directory}
	programs := map[*pkg]string{}
	for _, p := range chosen {
		began := time.Now()
		if programs[p], err = c.compile(ctx, p); err != nil {
			return err
		}
		d.say("compiled tests of %s in %.0f s", p.directory, time.Since(began).Seconds())
	}
	return d.runAll(ctx, chosen, programs, processors, most)
}

// runAll runs test programs.
func (d *deflaker) runAll(ctx context.Context, chosen []*pkg, programs map[*pkg]string, processors string,
	most time.Duration,
) error {
	limited := ctx
	if most > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, most)
		defer cancel()
	}
	var failed []string
	for i, p := range chosen {
		if limited.Err() != nil {
			d.leaveOut(fmt.Sprintf("not started within %s", most), chosen[i:])
			break
		}
		began := time.Now()
		o := runCopies(limited, filepath.Join(d.root, p.directory), programs[p], processors, d.runs)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if o.failed > 0 {
			failed = append(failed, p.directory)
			d.say("--- one of the copies of %s that failed\n%s---", p.directory, o.output)
		}
		d.say("%s: %d of %d copies passed, %d failed, %d not ended, in %.0f s",
			p.directory, o.passed, d.runs, o.failed, d.runs-o.passed-o.failed, time.Since(began).Seconds())
	}
	if len(failed) > 0 {
		return fmt.Errorf("flaky or broken: %s", strings.Join(failed, " "))
	}
	return nil
}

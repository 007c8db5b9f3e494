// Command prepare gets missing modules, programs and Envoy for make demo and make test, and writes a line for each
// download and build. It downloads Envoy while Go compiles, and modules before that, since go build downloads only as
// many in parallel as there are processors.
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
	"sync"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "prepare:", err)
		os.Exit(1)
	}
}

const usage = `usage: prepare [flags] demo|test

demo builds the programs of the demo into bin, and gets Envoy.
test compiles what tests import, and gets Envoy.
Both print the path of each Envoy.
`

// options of run.
type options struct {
	root    string
	all     bool
	race    bool
	tags    string
	vcs     bool
	modules []string
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o options
	flags := flag.NewFlagSet("prepare", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		_, _ = fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	flags.StringVar(&o.root, "root", "..", "top `directory` of the repository")
	flags.BoolVar(&o.all, "all", false, "get an Envoy of each supported version (default: the one at hand, else the newest)")
	flags.BoolVar(&o.race, "race", false, "compile tests with the race detector")
	flags.StringVar(&o.tags, "tags", "", "build `tags` of the demo, as for go build")
	flags.BoolVar(&o.vcs, "vcs", false, "have the programs name their commit")
	if err := flags.Parse(args); err != nil {
		return err
	}
	what := flags.Arg(0)
	if o.modules = flags.Args(); len(o.modules) > 0 {
		o.modules = o.modules[1:]
	}
	prepare, ok := map[string]func(*runner, context.Context, options) error{
		"demo": (*runner).demo, "test": (*runner).test,
	}[what]
	if !ok || what == "demo" && len(o.modules) > 0 {
		flags.Usage()
		return fmt.Errorf("invalid arguments %q", flags.Args())
	}
	root, err := filepath.Abs(o.root)
	if err != nil {
		return err
	}
	r := &runner{root: root, progress: &progress{out: stderr, began: time.Now()}}
	end := make(chan struct{})
	defer close(end)
	go r.report(end)
	var envoys string
	err = together(ctx, func(ctx context.Context) (err error) {
		envoys, err = r.envoy(ctx, o.all)
		return err
	}, func(ctx context.Context) error { return prepare(r, ctx, o) })
	if err != nil {
		return err
	}
	_, err = io.WriteString(stdout, envoys)
	return err
}

// together runs functions in parallel, cancels all when one fails, and returns its error.
func together(ctx context.Context, all ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	for _, f := range all {
		running.Go(func() {
			if err := f(ctx); err != nil {
				cancel(err)
			}
		})
	}
	running.Wait()
	return context.Cause(ctx)
}

// envoy returns the paths of Envoys, one per line.
func (r *runner) envoy(ctx context.Context, all bool) (paths string, err error) {
	args := []string{"run", "./envoy"}
	if all {
		args = append(args, "--all")
	}
	err = r.do(&step{name: "get Envoy"}, func(func()) error {
		paths, err = r.run(ctx, command{module: "tools", args: args}, func(line string) bool {
			r.say(line)
			return false // an error also contains this output
		})
		return err
	})
	return paths, err
}

// programs are the main module's packages for the demo.
var programs = []string{"./cmd/sonde-cp", "./cmd/sonde-dp", "./cmd/sondectl"}

// standard are packages that import most of the standard library that the programs use. They compile during the
// download of modules.
var standard = []string{"net/http/httputil", "html/template", "encoding/xml", "log/slog", "os/exec"}

func (r *runner) demo(ctx context.Context, o options) error {
	var tags []string
	if o.tags != "" {
		tags = []string{"-tags", o.tags}
	}
	var packages int
	err := together(ctx, func(ctx context.Context) (err error) {
		packages, err = r.modules(ctx, ".", programs...)
		return err
	}, func(ctx context.Context) error {
		_, err := r.modules(ctx, "test", append(tags, "./app", "./demo")...)
		return err
	}, func(ctx context.Context) error {
		return r.compile(ctx, "compile the standard library", 0, command{args: append([]string{"build", "-v"}, standard...)})
	})
	if err != nil {
		return err
	}
	bin := filepath.Join(r.root, "bin")
	build := []string{"build", "-v", "-ldflags", "-s -w"}
	if o.vcs {
		build = append(build, "-buildvcs=true")
	}
	for _, c := range []struct {
		name     string
		packages int
		command
	}{
		{"build sonde-cp, sonde-dp and sondectl", packages, command{args: slices.Concat(build, []string{"-o", bin + "/"}, programs)}},
		{"build the application", 0, command{
			module: "test", args: slices.Concat(build, []string{"-o", filepath.Join(bin, "test-app"), "./app"}),
		}},
		{"build the demo", 0, command{
			module: "test", args: slices.Concat(build, tags, []string{"-o", filepath.Join(bin, "demo"), "./demo"}),
		}},
	} {
		if err := r.compile(ctx, c.name, c.packages, c.command); err != nil {
			return err
		}
	}
	return nil
}

// test compiles the imports of tests before they run, since parallel go commands would each compile them.
func (r *runner) test(ctx context.Context, o options) error {
	flags := []string{"-test"}
	if o.race {
		flags = append(flags, "-race")
	}
	counts := make([]int, len(o.modules))
	var downloads []func(context.Context) error
	for i, module := range o.modules {
		downloads = append(downloads, func(ctx context.Context) (err error) {
			counts[i], err = r.modules(ctx, module, append(slices.Clone(flags), "./...")...)
			return err
		})
	}
	if err := together(ctx, downloads...); err != nil {
		return err
	}
	for i, module := range o.modules {
		args := slices.Concat([]string{"list", "-export", "-v", "-deps"}, flags, []string{"./..."})
		if err := r.compile(ctx, "compile tests of "+nameOf(module), counts[i], command{module: module, args: args}); err != nil {
			return err
		}
	}
	return nil
}

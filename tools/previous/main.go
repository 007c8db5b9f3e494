// Command previous builds the previous release, and prints its directory: bin/ has its programs, chart/ its chart, and
// with --image image.tar is its image. test/real/upgrade/previous names its commit. The cache stores the build.
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

	"github.com/sonde-mesh/sonde/tools/cache"
)

// exitMissing is the exit code if the history of the repository does not have the commit.
const exitMissing = 3

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case errors.Is(err, errMissing):
		fmt.Fprintln(os.Stderr, "previous:", err)
		os.Exit(exitMissing)
	case err != nil:
		fmt.Fprintln(os.Stderr, "previous:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("previous", flag.ContinueOnError)
	flags.SetOutput(stderr)
	image := flags.Bool("image", false, "make its image, too")
	tag := flags.String("tag", "docker.io/sonde-mesh/sonde:previous", "name of that image")
	repository := flags.String("repository", "..", "directory of the repository")
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
	b := builder{repository: *repository, cache: dir, progress: stderr}
	if *image {
		b.tag = *tag
	}
	path, err := b.build(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, path)
	return err
}

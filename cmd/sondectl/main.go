// Command sondectl shows the state of the control plane, issues tokens and rotates certificate authorities. Without a
// server it validates files, generates Envoy configuration from them, and injects sidecars.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run runs one command line and returns the exit code. The output of a command is held back until it has succeeded, so
// that a pipe never gets part of an output.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &cli{}
	root := c.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(&c.out)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	code := c.exitCode(err)
	if code == exitOK || code == exitUnfinished {
		if _, werr := stdout.Write(c.out.Bytes()); werr != nil {
			err, code = fmt.Errorf("write the output: %w", werr), exitFailed
		}
	}
	if err != nil {
		path := strings.Replace(cmd.CommandPath(), " ", ": ", 1)
		if code == exitUsage {
			err = fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())
		}
		cmd.PrintErrf("%s: %s\n", path, oneLine(err.Error()))
	}
	return code
}

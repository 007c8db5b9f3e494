// Command sondectl shows what the control plane knows, issues tokens, rotates certificate authorities, and checks files
// without any server.
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

// run runs one command line and returns the exit code. What a command writes is held back until it has succeeded, so that
// a pipe behind it never takes half an answer for a whole one.
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

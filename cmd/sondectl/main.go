// Command sondectl shows the state of the control plane, issues tokens and rotates certificate authorities. Without a
// server it validates files, generates Envoy configuration from them, and injects sidecars.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"k8s.io/klog/v2"

	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/settings"
)

func main() {
	klog.SetSlogLogger(slog.New(newLibraryLog(os.Stderr)))
	// Signals end the program as they end any other: nothing needs to be cleaned up, but for the Jobs of check --nodes, and the parent sees which signal it was.
	os.Exit((&cli{}).run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run runs one command line and returns the exit code. The output of a command is held back until it has succeeded, so
// that a pipe never gets part of an output.
func (c *cli) run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if err := dropEmptyVariables(); err != nil {
		panic(err) // only an invalid name is an error
	}
	stdout, stderr = printer.Safe(stdout), printer.Safe(stderr)
	c.stdout, c.stderr, c.cluster.Dial = stdout, stderr, c.dial
	root := c.root()
	root.SetArgs(splitGet(root, args))
	root.SetIn(stdin)
	root.SetOut(&c.out)
	root.SetErr(stderr)
	cmd, err := settings.Execute(ctx, root)
	c.closeSession()
	code := exit.Code(err)
	if exit.HasOutput(err) {
		if _, werr := stdout.Write(c.out.Bytes()); werr != nil {
			err, code = fmt.Errorf("write the output: %w", werr), exit.Failed
		}
	}
	if err != nil {
		path := strings.Replace(cmd.CommandPath(), " ", ": ", 1)
		if code == exit.Usage {
			err = fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())
		}
		cmd.PrintErrf("%s: %s\n", path, printer.OneLine(strings.ReplaceAll(err.Error(), "\n", "; ")))
	}
	return code
}

// dropEmptyVariables makes variables of this program that are empty count as none, as those of a script that has nothing to say.
func dropEmptyVariables() error {
	var errs []error
	for _, entry := range os.Environ() {
		if name, value, _ := strings.Cut(entry, "="); value == "" && strings.HasPrefix(name, envPrefix) {
			errs = append(errs, os.Unsetenv(name))
		}
	}
	return errors.Join(errs...)
}

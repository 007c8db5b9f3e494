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
	"github.com/sonde-mesh/sonde/internal/terminal"
)

func main() {
	klog.SetSlogLogger(slog.New(newLibraryLog(os.Stderr)))
	// Signals kill the program, so that its parent sees which signal it was. Only the Jobs of check --nodes need cleanup.
	os.Exit((&cli{}).run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run runs one command line and returns the exit code. It writes the command's output only after success, so that a
// pipe never gets an incomplete output.
func (c *cli) run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if err := dropEmptyVariables(); err != nil {
		panic(err) // fails only for an invalid name
	}
	c.colours, c.terminal = terminal.HasColours(stdout), terminal.Is(stdout)
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
		if werr := c.out.Show(stdout, c.hasColours()); werr != nil {
			err, code = fmt.Errorf("write output: %w", werr), exit.Failed
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

// dropEmptyVariables unsets this program's empty environment variables, which scripts often set.
func dropEmptyVariables() error {
	var errs []error
	for _, entry := range os.Environ() {
		if name, value, _ := strings.Cut(entry, "="); value == "" && strings.HasPrefix(name, envPrefix) {
			errs = append(errs, os.Unsetenv(name))
		}
	}
	return errors.Join(errs...)
}

// Command vuln runs govulncheck in modules. If its database is unreachable, it prints that nothing was checked and
// passes, unless the database is required.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"
)

// required is the variable that makes an unreachable database an error if its value is "required".
const required = "SONDE_VULN"

func main() {
	db := flag.String("db", "https://vuln.go.dev", "`URL` of the database")
	program := flag.String("govulncheck", "", "`path` of the program")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := check(ctx, reach(http.DefaultTransport, *db), os.Getenv(required) == "required", flag.Args(), os.Stdout, func(module string) error {
		cmd := exec.CommandContext(ctx, *program, "-db="+*db, "./...")
		cmd.Dir, cmd.Stdout, cmd.Stderr = module, os.Stdout, os.Stderr
		return cmd.Run()
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "vuln:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}

// reach returns a function that returns an error if a database does not respond.
func reach(transport http.RoundTripper, db string) func(context.Context) error {
	client := http.Client{Transport: transport, Timeout: 30 * time.Second}
	return func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(db, "/")+"/index/db.json", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(r)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("GET %s: %s", r.URL, response.Status)
		}
		return nil
	}
}

// check runs govulncheck in each module. It returns findings, and failures of govulncheck, as errors.
func check(
	ctx context.Context, reach func(context.Context) error, required bool, modules []string, out io.Writer,
	run func(module string) error,
) error {
	if err := reach(ctx); err != nil {
		err = fmt.Errorf("the database of vulnerabilities cannot be reached, so NOTHING WAS CHECKED: %w", err)
		if required {
			return err
		}
		_, printErr := fmt.Fprintln(out, "vuln:", err)
		return printErr
	}
	var errs []error
	for _, module := range modules {
		if _, err := fmt.Fprintln(out, "== govulncheck of", module); err != nil {
			return err
		}
		if err := run(module); err != nil {
			errs = append(errs, fmt.Errorf("govulncheck of %s: %w", module, err))
		}
	}
	return errors.Join(errs...)
}

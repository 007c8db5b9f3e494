// Command fasttests checks that tests of fast packages use no processes, no sockets and only the clock of
// testing/synctest. Its arguments are directories of modules. Packages with real tests are exempt: see package tier.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/packages"

	"github.com/sonde-mesh/sonde/tools/tier"
)

func main() {
	switch err := run(os.Args[1:], os.Stdout); {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "fasttests:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("fasttests", flag.ContinueOnError)
	root := flags.String("root", "..", "top `directory` of the repository")
	counts := flags.Bool("counts", false, "print the number of messages per package instead of the messages")
	if err := flags.Parse(args); err != nil {
		return err
	}
	top, err := filepath.Abs(*root)
	if err != nil {
		return err
	}
	tiers, err := tier.Read(top)
	if err != nil {
		return err
	}
	a := &analyzer{
		root: top, isReal: tiers.Real, packages: map[string]bool{}, found: map[string][]string{},
		facts: map[string]analysis.Fact{}, done: map[*packages.Package]bool{}, named: map[*packages.Package]bool{},
	}
	for _, module := range flags.Args() {
		if err := a.module(module); err != nil {
			return err
		}
	}
	total := 0
	for _, directory := range slices.Sorted(maps.Keys(a.found)) {
		all := a.found[directory]
		total += len(all)
		if *counts {
			all = []string{fmt.Sprintf("%5d %s", len(all), directory)}
		}
		for _, line := range all {
			if _, err := fmt.Fprintln(stdout, line); err != nil {
				return err
			}
		}
	}
	err = tiers.Unknown(a.packages)
	if total > 0 {
		err = errors.Join(err, fmt.Errorf("%d uses of sockets, processes and clocks in %d fast packages", total, len(a.found)))
	}
	return err
}

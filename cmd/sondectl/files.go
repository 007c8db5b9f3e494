package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/manifest"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/settings"
	"github.com/sonde-mesh/sonde/store"
)

// objectsUsage is the usage of -f for objects of the mesh.
const objectsUsage = "`FILE|DIR|-` with the objects; - is standard input"

// oneFile is a flag that may only be set once. kubectl reads all of several -f; this command would read only the last.
type oneFile struct {
	path  *string
	given bool
}

// String implements pflag.Value.
func (f *oneFile) String() string { return "" }

// Type implements pflag.Value.
func (f *oneFile) Type() string { return "path" }

// Set implements pflag.Value.
func (f *oneFile) Set(s string) error {
	if f.given {
		return fmt.Errorf("must be set once, and is already %q", *f.path)
	}
	*f.path, f.given = s, true
	return nil
}

// fileFlag adds the flag -f.
func fileFlag(cmd *cobra.Command, path *string, usage string) {
	cmd.Flags().VarP(&oneFile{path: path}, "file", "f", usage)
	settings.Must(cmd.MarkFlagRequired("file"))
	settings.Must(cmd.MarkFlagFilename("file", "yaml", "yml", "json"))
}

// modeOfFiles is the usage of the flag modeFlag for objects of the mesh.
const modeOfFiles = "mode of probes for Dataplanes that set none, as in the control plane's --virtual-probes-mode"

// noArguments rejects arguments, such as the additional files after a shell expands -f *.yaml.
func noArguments(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return settings.Usagef("%q: is an unexpected argument: -f accepts one file per call", args[0])
}

// readObjects reads objects like the control plane's store with this mode of probes, and writes all problems to stderr.
// It returns an error if a problem is an Error, or if a file has no object. An empty directory is only a warning, as in
// the control plane.
func readObjects(cmd *cobra.Command, path string, mode mesh.ProbesMode) ([]store.Document, error) {
	documents, problems, err := store.Read(path, cmd.InOrStdin(), mode)
	if err != nil {
		return nil, err
	}
	printProblems(cmd, problems)
	if err := verdict(path, documents, problems); err != nil {
		return nil, err
	}
	return documents, nil
}

// printProblems writes problems to stderr, one per line.
func printProblems(cmd *cobra.Command, problems []store.Problem) {
	for _, p := range problems {
		cmd.PrintErrf("%s: %s: %s\n", printer.OneLine(p.Place.String()), p.Severity, printer.OneLine(p.Err.Error()))
	}
}

// verdict returns the error for readObjects.
func verdict(path string, documents []store.Document, problems []store.Problem) error {
	wrong := 0
	for _, p := range problems {
		if p.Severity == store.Error {
			wrong++
		}
	}
	switch {
	case wrong > 0:
		return fmt.Errorf("%s: %s", path, printer.Plural(wrong, "error"))
	case len(documents) == 0 && !manifest.IsDirectory(path):
		return fmt.Errorf("%s: contains no Mesh, Dataplane, Service or MeshService", path)
	}
	return nil
}

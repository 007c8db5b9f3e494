package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/store"
)

// fileFlag is -f of the commands that work on files.
func fileFlag(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVarP(path, "file", "f", "", "`FILE|DIR|-` with the objects; - is standard input")
	must(cmd.MarkFlagRequired("file"))
	must(cmd.MarkFlagFilename("file", "yaml", "yml", "json"))
}

// readObjects reads as the control plane's store does, and writes every problem to stderr. It fails if one of them is an
// error, or if there is no object at all.
func readObjects(cmd *cobra.Command, path string) ([]store.Document, error) {
	documents, problems, err := store.Read(path, cmd.InOrStdin())
	if err != nil {
		return nil, err
	}
	wrong := 0
	for _, p := range problems {
		if p.Severity == store.Error {
			wrong++
		}
		cmd.PrintErrf("%s: %s: %s\n", oneLine(p.Place.String()), p.Severity, oneLine(p.Err.Error()))
	}
	switch {
	case wrong > 0:
		return nil, fmt.Errorf("%s: %s", path, count(wrong, "error"))
	case len(documents) == 0:
		return nil, fmt.Errorf("%s: there is no Mesh, Dataplane or Service in it", path)
	}
	return documents, nil
}

// count is "1 error" or "2 errors".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func (c *cli) validate() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "validate -f FILE|DIR|-",
		Short: "Check files of Meshes, Dataplanes and Services, without any server",
		Long: `Check Meshes, Dataplanes and Services as the control plane's store does, without any server. Every problem is written to
stderr, with file, document, line and field. Fields that are deprecated, or that Kuma has and Sonde lacks, are warnings.

Of a folder the files *.yaml, *.yml and *.json are read, all together: an object that comes twice is an error, and so is
a mesh that none of them has.

Exit code 0: all are valid, perhaps with warnings; 1: there is an error.`,
		Example: `  sondectl validate -f mesh.yaml
  sondectl validate -f mesh/
  kubectl get configmap mesh -o jsonpath='{.data.mesh}' | sondectl validate -f -`,
		Args: cobra.NoArgs,
	}
	fileFlag(cmd, &path)
	cmd.RunE = c.action(func(cmd *cobra.Command, _ []string) error {
		documents, err := readObjects(cmd, path)
		if err != nil {
			return err
		}
		verb := "are"
		if len(documents) == 1 {
			verb = "is"
		}
		fmt.Fprintf(&c.out, "%s %s valid\n", count(len(documents), "object"), verb)
		return nil
	})
	return cmd
}

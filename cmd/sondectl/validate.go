package main

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/manifest"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/store"
)

func (c *cli) validate() *cobra.Command {
	var path string
	mode := manifest.NewModeChoice()
	cmd := &cobra.Command{
		Use:   "validate -f FILE|DIR|-",
		Short: "Check files of Meshes, Dataplanes, Services and MeshServices, without any server",
		Long: `Check Meshes, Dataplanes, Services and MeshServices as the control plane's store does, without any server. Problems are written to
stderr, with file, document, line and field. Fields that are deprecated, or that Kuma has and Sonde lacks, are warnings,
and so is a Mesh whose mtls enables no backend.
What "sondectl get -o yaml" and "sondectl get -o json" write is taken, too; the field status is ignored there.

In a directory the files *.yaml, *.yml and *.json are checked together: an object that occurs twice is an error, and so is
the name of a mesh that does not exist. An outbound to a service that none of them has is a warning, and so is an inbound without a
serviceProbe: it is unchecked, and gets traffic whether its application answers or not.

With -o json or -o yaml all objects and problems are on stdout, whatever the exit code.

Exit code 0: all are valid, perhaps with warnings; 1: there is an error.`,
		Example: `  sondectl validate -f mesh.yaml
  sondectl validate -f mesh/
  sondectl validate -f mesh/ -o json | jq -r '.problems[] | "\(.file):\(.line): \(.field): \(.message)"'
  kubectl get configmap mesh -o jsonpath='{.data.mesh}' | sondectl validate -f -`,
		Args: noArguments,
	}
	fileFlag(cmd, &path, objectsUsage)
	mode.Add(cmd, manifest.ModeFlag, "", modeOfFiles)
	output := printer.AddFormat(cmd, printer.Text, printer.YAML, printer.JSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if output.Value != printer.Text {
			return c.report(cmd, path, mode.Value, output.Value)
		}
		documents, err := readObjects(cmd, path, mode.Value)
		if err != nil {
			return err
		}
		printProblems(cmd, unchecked(documents))
		verb := "are"
		if len(documents) == 1 {
			verb = "is"
		}
		fmt.Fprintf(&c.out, "%s %s valid\n", printer.Plural(len(documents), "object"), verb)
		return nil
	}
	return cmd
}

// validation is what validate has found, for programs.
type validation struct {
	Valid    bool          `json:"valid"`
	Objects  []placedName  `json:"objects"`
	Problems []problemText `json:"problems"`
}

// placedName is a valid object, and where it is.
type placedName struct {
	Type     mesh.Kind `json:"type"`
	Mesh     string    `json:"mesh,omitempty"`
	Name     string    `json:"name"`
	File     string    `json:"file"`
	Document int       `json:"document"`
	Line     int       `json:"line"`
}

// problemText is a store.Problem. Document and Line are 0 where a whole file is meant.
type problemText struct {
	Severity string `json:"severity"`
	File     string `json:"file"`
	Document int    `json:"document,omitempty"`
	Line     int    `json:"line,omitempty"`
	Field    string `json:"field,omitempty"`
	Value    string `json:"value,omitempty"`
	Message  string `json:"message"`
}

// unchecked warns of inbounds whose applications nobody checks. Of endpoints of a Service it does not: those cannot have a probe.
func unchecked(documents []store.Document) []store.Problem {
	var problems []store.Problem
	for _, doc := range documents {
		d, ok := doc.Object.(*mesh.Dataplane)
		if !ok {
			continue
		}
		var ports []string
		for in := range d.Spec.Networking.ActiveInbounds() {
			if d.Unchecked(in) && in.DeclaredReady() {
				ports = append(ports, strconv.FormatUint(uint64(in.Port), 10))
			}
		}
		if len(ports) > 0 {
			problems = append(problems, store.Problem{Place: doc.Place, Severity: store.Warning, Err: fmt.Errorf(
				"%s: dataplane %q has no serviceProbe at inbound %s: nobody checks the application, and it gets traffic whether it answers or not",
				uncheckedWord, d.Name, mesh.Few(ports))})
		}
	}
	return problems
}

// report writes what readObjects would, for programs.
func (c *cli) report(cmd *cobra.Command, path string, mode mesh.ProbesMode, f printer.Format) error {
	documents, problems, err := store.Read(path, cmd.InOrStdin(), mode)
	if err != nil {
		return err
	}
	wrong := verdict(path, documents, problems)
	if wrong == nil {
		problems = append(problems, unchecked(documents)...)
	}
	v := validation{Valid: wrong == nil, Objects: []placedName{}, Problems: []problemText{}}
	for _, d := range documents {
		key := d.Object.Key()
		v.Objects = append(v.Objects, placedName{key.Kind, key.Mesh, key.Name, d.Place.File, d.Place.Document, d.Place.Line})
	}
	for _, p := range problems {
		text := problemText{Severity: p.Severity.String(), File: p.File, Document: p.Document, Line: p.Line, Message: p.Err.Error()}
		if field, ok := errors.AsType[*mesh.FieldError](p.Err); ok {
			text.Field, text.Value, text.Message = field.Field, field.Value, cmp.Or(field.Err, errors.New(field.Allowed)).Error()
		}
		v.Problems = append(v.Problems, text)
	}
	if err := printer.Write(&c.out, f, v, nil); err != nil || wrong == nil {
		return err
	}
	return &exit.Error{Code: exit.Failed, Err: wrong, Output: true}
}

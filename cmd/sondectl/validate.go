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
		Long: `Check Meshes, Dataplanes, Services and MeshServices like the control plane's store, without any server. The command
prints problems to stderr, with file, document, line and field. It warns of fields that are deprecated, of fields of
Kuma that Sonde lacks, and of a Mesh whose mtls enables no backend. It also accepts the output of "sondectl get -o yaml"
and "sondectl get -o json", whose field status it ignores.

The files *.yaml, *.yml and *.json of a directory are checked together: a duplicate object and the name of an unknown
mesh are errors. An outbound to an unknown service is a warning, and so is an inbound without a serviceProbe, which gets
traffic whether its application answers or not.

With -o json or -o yaml, all objects and problems are on stdout, for any exit code.

Exit code 0: all objects are valid, possibly with warnings; 1: an error was found.`,
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

// validation is the result of validate for programs.
type validation struct {
	Valid    bool          `json:"valid"`
	Objects  []placedName  `json:"objects"`
	Problems []problemText `json:"problems"`
}

// placedName names a valid object, and its file and line.
type placedName struct {
	Type     mesh.Kind `json:"type"`
	Mesh     string    `json:"mesh,omitempty"`
	Name     string    `json:"name"`
	File     string    `json:"file"`
	Document int       `json:"document"`
	Line     int       `json:"line"`
}

// problemText is a store.Problem. Document and Line are 0 if it is about a whole file.
type problemText struct {
	Severity string `json:"severity"`
	File     string `json:"file"`
	Document int    `json:"document,omitempty"`
	Line     int    `json:"line,omitempty"`
	Field    string `json:"field,omitempty"`
	Value    string `json:"value,omitempty"`
	Message  string `json:"message"`
}

// unchecked warns of inbounds whose applications nothing checks. It omits endpoints of a Service, which cannot have a
// probe.
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
				"%s: dataplane %q has no serviceProbe at inbound %s: nothing checks the application, and it gets traffic whether it answers or not",
				uncheckedWord, d.Name, mesh.Few(ports))})
		}
	}
	return problems
}

// report writes the results of readObjects for programs.
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
		text := problemText{
			Severity: p.Severity.String(), File: p.File, Document: p.Document, Line: p.Line, Message: p.Err.Error(),
		}
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

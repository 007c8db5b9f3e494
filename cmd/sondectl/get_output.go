package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/settings"
)

// listing is what a command lists: a table, or documents for -o yaml and -o json.
type listing struct {
	header []string
	// more are the headers of columns that -o wide of get adds.
	more      []string
	rows      []printer.Row
	documents []any
	tail      *adminv1.Tail
}

// shower returns the document of an entry of an answer, and its row.
type shower[Entry any] = func(Entry) (document any, row printer.Row, err error)

// showMessage shows an entry as the message that it is.
func showMessage[M proto.Message](row func(M) printer.Row) shower[M] {
	return func(m M) (any, printer.Row, error) { return printer.Message{Message: m}, row(m), nil }
}

// newListing lists entries under a header, whose columns are separated by spaces.
func newListing[Entry any](header string, entries []Entry, show shower[Entry]) (*listing, error) {
	l := &listing{header: strings.Fields(header)}
	for _, entry := range entries {
		document, row, err := show(entry)
		if err != nil {
			return nil, err
		}
		l.documents, l.rows = append(l.documents, document), append(l.rows, row)
	}
	return l, nil
}

func (l *listing) write(w *bytes.Buffer, f printer.Format) error {
	switch f {
	case printer.JSON:
		// Always a list, so that scripts need not handle two shapes.
		return printer.WriteJSON(w, append([]any{}, l.documents...))
	case printer.YAML:
		for i, document := range l.documents {
			if i > 0 {
				w.WriteString("---\n")
			}
			if err := printer.WriteYAML(w, document); err != nil {
				return err
			}
		}
		return nil
	default:
		printer.WriteTable(w, l.header, l.rows)
		return nil
	}
}

// getOutput is the value of -o of get: a format, or jsonpath= and a template.
type getOutput struct {
	format    printer.Format
	template  string
	path      *jsonpath.JSONPath
	noHeaders bool
}

// jsonPathPrefix is what a template stands behind, as for kubectl.
const jsonPathPrefix = "jsonpath="

func getFormats() *settings.Choice[printer.Format] {
	return &settings.Choice[printer.Format]{Value: printer.Table, Among: []printer.Format{printer.Table, printer.Wide, printer.Name, printer.YAML, printer.JSON}}
}

// String implements pflag.Value.
func (o *getOutput) String() string {
	if o.path != nil {
		return jsonPathPrefix + o.template
	}
	return string(o.format)
}

// Type implements pflag.Value.
func (o *getOutput) Type() string { return getFormats().Type() + "|" + jsonPathPrefix + "TEMPLATE" }

// Set implements pflag.Value.
func (o *getOutput) Set(s string) error {
	template, isPath := strings.CutPrefix(s, jsonPathPrefix)
	if !isPath {
		formats := getFormats()
		if formats.Set(s) != nil {
			return fmt.Errorf("must be one of %s, or %sTEMPLATE", strings.Join(formats.Words(), ", "), jsonPathPrefix)
		}
		*o = getOutput{format: formats.Value, noHeaders: o.noHeaders}
		return nil
	}
	path := jsonpath.New("template").AllowMissingKeys(true) // as kubectl: not every object has every label
	if err := path.Parse(template); err != nil {
		return fmt.Errorf("%s must be a template of kubectl's, such as {.items[*].name}: %w", jsonPathPrefix, err)
	}
	*o = getOutput{template: template, path: path, noHeaders: o.noHeaders}
	return nil
}

// add adds the flags -o and --no-headers to cmd.
func (o *getOutput) add(cmd *cobra.Command) {
	o.format = printer.Table
	cmd.Flags().VarP(o, "output", "o", "how to write it")
	cmd.Flags().BoolVar(&o.noHeaders, "no-headers", false, "tables without the line of headers")
	words := append(getFormats().Words(), jsonPathPrefix)
	settings.Must(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace)))
}

// ofItems matches a template that is for a list.
var ofItems = regexp.MustCompile(`\.items\b|\[['"]items['"]\]|\.\.`)

// check refuses a template for a list where there is one object, and the other way round: it would write nothing.
func (o *getOutput) check(one bool) error {
	switch {
	case o.path == nil || strings.Contains(o.template, ".."):
	case one && ofItems.MatchString(o.template):
		return settings.Usagef("--output: %q: must not begin at .items: with NAME or --watch it is for each object alone, as {.name}", o.template)
	case !one && !ofItems.MatchString(o.template):
		return settings.Usagef("--output: %q: must begin at .items, as {.items[*].name}: without NAME it is for a list", o.template)
	}
	return nil
}

// write writes what was listed of a collection. A template is for each object of one name, as there may be one in each mesh, else for the
// list of all.
func (o *getOutput) write(w *bytes.Buffer, of collection, l *listing, one bool) error {
	switch {
	case o.format == printer.Table || o.format == printer.Wide:
		(&printer.Columns{}).Write(w, append(o.header(l), o.rows(l)...))
		return nil
	case o.format == printer.Name:
		writeNames(w, of, l)
		return nil
	case o.path == nil:
		return l.write(w, o.format)
	case !one:
		return o.execute(w, map[string]any{"items": append([]any{}, l.documents...)})
	}
	for i, document := range l.documents {
		if i > 0 {
			w.WriteByte('\n')
		}
		if err := o.execute(w, document); err != nil {
			return err
		}
	}
	return nil
}

func writeNames(w *bytes.Buffer, of collection, l *listing) {
	for _, r := range l.rows {
		fmt.Fprintf(w, "%s/%s\n", of.singular, of.name(r))
	}
}

// header returns the line of headers, if there is one.
func (o *getOutput) header(l *listing) []printer.Row {
	switch {
	case o.noHeaders:
		return nil
	case o.format == printer.Wide:
		return []printer.Row{{Cells: slices.Concat(l.header, l.more)}}
	}
	return []printer.Row{{Cells: l.header}}
}

// rows returns those of the table.
func (o *getOutput) rows(l *listing) []printer.Row {
	rows := make([]printer.Row, len(l.rows))
	for i, r := range l.rows {
		if o.format == printer.Wide {
			rows[i] = printer.Row{Cells: slices.Concat(r.Wide, r.More), Notes: r.Notes}
		} else {
			rows[i] = printer.Row{Cells: r.Cells, Notes: printer.FewNotes(r.Notes)}
		}
	}
	return rows
}

// execute writes what the template makes of what a document is as JSON.
func (o *getOutput) execute(w *bytes.Buffer, document any) error {
	body, err := json.Marshal(document)
	if err != nil {
		return err
	}
	var data any
	if err := kjson.Unmarshal(body, &data); err != nil {
		return err
	}
	if err := o.path.Execute(w, data); err != nil {
		return fmt.Errorf("--output: %q: %w", o.template, err)
	}
	return nil
}

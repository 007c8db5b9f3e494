package main

import (
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

// listing is the content of a list: rows of a table, or documents for -o yaml and -o json.
type listing struct {
	header []string
	// more are the headers of the columns that -o wide adds.
	more []string
	// varying are the columns that a table only has if their values differ.
	varying   []int
	rows      []printer.Row
	documents []any
	// compared are what tables show of the documents without ages, for --watch; nil: the documents.
	compared []any
	tail     *adminv1.Tail
	// probesLeftOut counts the probes of proxies that the control plane does not list.
	probesLeftOut uint32
}

// shower returns the document and the row of an entry.
type shower[Entry any] = func(Entry) (document any, row printer.Row, err error)

// showMessage uses the entry's message itself as its document.
func showMessage[M proto.Message](row func(M) printer.Row) shower[M] {
	return func(m M) (any, printer.Row, error) { return printer.Message{Message: m}, row(m), nil }
}

// newListing lists entries under a header, whose columns are separated by spaces. A question mark after a column hides
// the column unless its values differ.
func newListing[Entry any](header string, entries []Entry, show shower[Entry]) (*listing, error) {
	l := &listing{}
	for at, name := range strings.Fields(header) {
		name, varies := strings.CutSuffix(name, "?")
		if l.header = append(l.header, name); varies {
			l.varying = append(l.varying, at)
		}
	}
	for _, entry := range entries {
		document, row, err := show(entry)
		if err != nil {
			return nil, err
		}
		l.documents, l.rows = append(l.documents, document), append(l.rows, row)
	}
	return l, nil
}

func (l *listing) write(w *printer.Output, f printer.Format) error {
	switch f {
	case printer.JSON:
		// Always write a list, so that scripts need not handle two formats.
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

// getOutput is the value of get's -o: a format, or jsonpath= and a template.
type getOutput struct {
	format    printer.Format
	template  string
	path      *jsonpath.JSONPath
	noHeaders bool
}

// jsonPathPrefix precedes a template, like kubectl's.
const jsonPathPrefix = "jsonpath="

func getFormats() *settings.Choice[printer.Format] {
	return &settings.Choice[printer.Format]{
		Value: printer.Table, Among: []printer.Format{printer.Table, printer.Wide, printer.Name, printer.YAML, printer.JSON},
	}
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
	path := jsonpath.New("template").AllowMissingKeys(true) // like kubectl, allow missing keys: not every object has every label
	if err := path.Parse(template); err != nil {
		return fmt.Errorf("%s must be a kubectl template, such as {.items[*].name}: %w", jsonPathPrefix, err)
	}
	*o = getOutput{template: template, path: path, noHeaders: o.noHeaders}
	return nil
}

// add adds the flags -o and --no-headers to cmd.
func (o *getOutput) add(cmd *cobra.Command) {
	o.format = printer.Table
	cmd.Flags().VarP(o, "output", "o", "output format")
	cmd.Flags().BoolVar(&o.noHeaders, "no-headers", false, "tables without the header line")
	words := append(getFormats().Words(), jsonPathPrefix)
	settings.Must(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace)))
}

// ofItems matches a template for a list.
var ofItems = regexp.MustCompile(`\.items\b|\[['"]items['"]\]|\.\.`)

// check rejects a list template for objects, and an object template for a list: they would write nothing.
func (o *getOutput) check(one bool) error {
	switch {
	case o.path == nil || strings.Contains(o.template, ".."):
	case one && ofItems.MatchString(o.template):
		return settings.Usagef("--output: %q: must not begin with .items: with NAME or --watch, the template applies to each object, such as {.name}", o.template)
	case !one && !ofItems.MatchString(o.template):
		return settings.Usagef("--output: %q: must begin with .items, such as {.items[*].name}: without NAME, the template applies to the list", o.template)
	}
	return nil
}

// write writes a listing of a collection. With a name, a template applies to each object, since each mesh may have one;
// otherwise it applies to the list.
func (o *getOutput) write(w *printer.Output, of collection, l *listing, one bool) error {
	switch {
	case o.format == printer.Table || o.format == printer.Wide:
		columns, rows := printer.Columns{Names: o.header(l, l.differs)}, o.rows(l, l.differs)
		if !o.noHeaders {
			columns.WriteHeader(w, rows)
		}
		columns.Write(w, rows)
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

func writeNames(w *printer.Output, of collection, l *listing) {
	for _, r := range l.rows {
		fmt.Fprintf(w, "%s/%s\n", of.singular, of.name(r))
	}
}

// differs reports whether the rows have different values in a column.
func (l *listing) differs(column int) bool { return printer.Differ(l.rows, column) }

// always keeps all varying columns: while --watch runs, their values may begin to differ.
func always(int) bool { return true }

// header returns the names of the columns. keep selects the varying ones.
func (o *getOutput) header(l *listing, keep func(column int) bool) []string {
	if o.format == printer.Wide {
		return slices.Concat(l.header, l.more)
	}
	return l.without(l.header, keep)
}

// rows returns the rows of the table.
func (o *getOutput) rows(l *listing, keep func(column int) bool) []printer.Row {
	rows := make([]printer.Row, len(l.rows))
	for i, r := range l.rows {
		if o.format == printer.Wide {
			rows[i] = printer.Row{Cells: slices.Concat(r.Wide, r.More), Notes: r.Notes}
		} else {
			rows[i] = printer.Row{Cells: l.without(r.Cells, keep), Notes: printer.FewNotes(r.Notes)}
		}
	}
	return rows
}

// without removes the varying columns that are not kept from cells.
func (l *listing) without(cells []string, keep func(column int) bool) []string {
	var kept []string
	for at, cell := range cells {
		if !slices.Contains(l.varying, at) || keep(at) {
			kept = append(kept, cell)
		}
	}
	return kept
}

// execute applies the template to the JSON of a document.
func (o *getOutput) execute(w *printer.Output, document any) error {
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

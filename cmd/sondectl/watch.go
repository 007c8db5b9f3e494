package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// watchEvery is the interval at which --watch polls the control plane.
const watchEvery = 2 * time.Second

// watch writes the current objects, and then each object that changes, until a signal. It polls, to survive restarts of
// the control plane. Values that depend only on time, such as an age, are not changes.
func (c *cli) watch(cmd *cobra.Command, r collection, filter *adminv1.Filter, o *getOutput, now *listing) error {
	ctx := cmd.Context()
	again := time.NewTicker(watchEvery)
	defer again.Stop()
	w := &watcher{out: c.stdout, colours: c.hasColours(), of: r, output: o}
	lost := false
	for {
		if err := w.show(now); err != nil {
			return err
		}
		tail := now.tail
		for now = nil; now == nil; {
			select {
			case <-ctx.Done():
				return nil
			case <-again.C:
			}
			found, err := c.list(ctx, r, filter)
			var failed *exit.Error
			switch {
			case ctx.Err() != nil:
				return nil
			case err == nil:
				if now = found; lost {
					cmd.PrintErrln("sondectl: the control plane responds again")
				}
				lost = false
				reportChanges(cmd, tail, now.tail)
			case !errors.As(err, &failed) || failed.Code != exit.Unreachable:
				return err
			case !lost:
				cmd.PrintErrf("sondectl: %s; retrying every %s\n", printer.OneLine(err.Error()), watchEvery)
				lost = true
			}
		}
	}
}

// watcher writes the changes from one listing to the next.
type watcher struct {
	out     io.Writer
	colours bool
	of      collection
	output  *getOutput
	columns printer.Columns
	shown   []entry // nil before the first listing
}

// show immediately writes the differences from the last output; the first time, it writes everything. It writes a
// removed object in its last state, marked as removed.
func (w *watcher) show(now *listing) error {
	after, err := w.entries(now)
	if err != nil {
		return err
	}
	changed := &listing{}
	if w.shown == nil {
		w.columns.Names = w.output.header(now, always)
	}
	before, is := byName(w.shown), byName(after)
	for _, e := range after {
		if was, ok := before[e.name]; !ok || !bytes.Equal(was.compared, e.compared) {
			changed.rows, changed.documents = append(changed.rows, e.row), append(changed.documents, e.body)
		}
	}
	for _, e := range w.shown {
		if _, ok := is[e.name]; ok {
			continue
		}
		if now.tail.GetLeftOut() > 0 { // omitted objects may still exist
			after = append(after, e)
			continue
		}
		e.row.Notes = []string{"removed"}
		changed.rows = append(changed.rows, e.row)
		changed.documents = append(changed.documents, append(json.RawMessage(`{"removed":true,`), e.body[1:]...))
	}
	first := w.shown == nil
	w.shown = after
	var out printer.Output
	if err := w.write(&out, first, changed); err != nil {
		return err
	}
	if err := out.Show(w.out, w.colours); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// write writes separate documents, since a list could never be closed.
func (w *watcher) write(out *printer.Output, first bool, l *listing) error {
	switch w.output.format {
	case printer.Table, printer.Wide:
		rows := w.output.rows(l, always)
		if first && !w.output.noHeaders {
			w.columns.WriteHeader(out, rows)
		}
		w.columns.Write(out, rows)
		return nil
	case printer.Name:
		writeNames(out, w.of, l)
		return nil
	}
	for _, document := range l.documents {
		var err error
		switch {
		case w.output.path != nil:
			err = w.output.execute(out, document)
			out.WriteByte('\n')
		case w.output.format == printer.JSON:
			err = printer.WriteJSON(out, document)
		default:
			out.WriteString("---\n")
			err = printer.WriteYAML(out, document)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// entry is an object of a listing.
type entry struct {
	name     string          // mesh/name, or a mesh's name
	body     json.RawMessage // document
	compared json.RawMessage // what the format shows of it
	row      printer.Row
}

func byName(entries []entry) map[string]entry {
	all := make(map[string]entry, len(entries))
	for _, e := range entries {
		all[e.name] = e
	}
	return all
}

func (w *watcher) entries(l *listing) ([]entry, error) {
	entries := make([]entry, len(l.rows))
	table := l.compared != nil &&
		slices.Contains([]printer.Format{printer.Table, printer.Wide, printer.Name}, w.output.format)
	for i := range l.rows {
		body, err := encoded(l.documents[i])
		if err != nil {
			return nil, err
		}
		compared := body
		if table {
			if compared, err = encoded(l.compared[i]); err != nil {
				return nil, err
			}
		}
		name := l.rows[i].Cells[0]
		if w.of.inMeshes {
			name += "/" + w.of.name(l.rows[i])
		}
		entries[i] = entry{name: name, body: body, compared: compared, row: l.rows[i]}
	}
	return entries, nil
}

// encoded returns the JSON of a document, without escapes for HTML.
func encoded(document any) (json.RawMessage, error) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(document); err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	return body.Bytes(), nil
}

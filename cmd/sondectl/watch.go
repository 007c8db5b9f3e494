package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// watchEvery is how often --watch asks the control plane.
const watchEvery = 2 * time.Second

// watch writes what was found, and then each object that changes, until a signal. It asks again and again: the control plane may be
// restarted meanwhile. What depends on the time alone, such as an age, is no change.
func (c *cli) watch(cmd *cobra.Command, r collection, filter *adminv1.Filter, o *getOutput, now *listing) error {
	ctx := cmd.Context()
	again := time.NewTicker(watchEvery)
	defer again.Stop()
	w := &watcher{out: c.stdout, of: r, output: o}
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
					cmd.PrintErrln("sondectl: the control plane answers again")
				}
				lost = false
				reportChanges(cmd, tail, now.tail)
			case !errors.As(err, &failed) || failed.Code != exit.Unreachable:
				return err
			case !lost:
				cmd.PrintErrf("sondectl: %s; asking again every %s\n", printer.OneLine(err.Error()), watchEvery)
				lost = true
			}
		}
	}
}

// watcher writes what changes from one listing to the next.
type watcher struct {
	out     io.Writer
	of      collection
	output  *getOutput
	columns printer.Columns
	shown   []entry // nil before the first
}

// show writes at once what differs from what was shown, at first everything. An object that is gone is written as it was, and said to
// be removed.
func (w *watcher) show(now *listing) error {
	after, err := w.entries(now)
	if err != nil {
		return err
	}
	changed := &listing{}
	var header []printer.Row
	if w.shown == nil {
		header = w.output.header(now)
	}
	before, is := byName(w.shown), byName(after)
	for _, e := range after {
		if was, there := before[e.name]; !there || !bytes.Equal(was.body, e.body) {
			changed.rows, changed.documents = append(changed.rows, e.row), append(changed.documents, e.body)
		}
	}
	for _, e := range w.shown {
		if _, there := is[e.name]; there {
			continue
		}
		if now.tail.GetLeftOut() > 0 { // what is not listed may still be there
			after = append(after, e)
			continue
		}
		e.row.Notes = []string{"removed"}
		changed.rows = append(changed.rows, e.row)
		changed.documents = append(changed.documents, append(json.RawMessage(`{"removed":true,`), e.body[1:]...))
	}
	w.shown = after
	var out bytes.Buffer
	if err := w.write(&out, header, changed); err != nil {
		return err
	}
	if _, err := w.out.Write(out.Bytes()); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// write writes documents one after the other, since there is no end of which a list could be.
func (w *watcher) write(out *bytes.Buffer, header []printer.Row, l *listing) error {
	switch w.output.format {
	case printer.Table, printer.Wide:
		w.columns.Write(out, append(header, w.output.rows(l)...))
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
	name string          // mesh/name, or that of a mesh
	body json.RawMessage // what makes a difference: its document
	row  printer.Row
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
	for i := range l.rows {
		var body bytes.Buffer
		encoder := json.NewEncoder(&body)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(l.documents[i]); err != nil {
			return nil, fmt.Errorf("encode an answer: %w", err)
		}
		name := l.rows[i].Cells[0]
		if w.of.inMeshes {
			name += "/" + w.of.name(l.rows[i])
		}
		entries[i] = entry{name: name, body: body.Bytes(), row: l.rows[i]}
	}
	return entries, nil
}

// Package board writes the output of a demo: a table with a row and a result for each step.
package board

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/internal/terminal"
)

// Board writes the table.
type Board struct {
	out io.Writer
	// terminal means that lines can be overwritten.
	terminal bool
	colour   bool
	started  time.Time

	// Steps and Failed count the steps.
	Steps, Failed int
}

// New returns a Board that writes to a file, in colour if the file is a terminal.
func New(out *os.File) *Board {
	return &Board{
		out: out, terminal: terminal.Is(out) && os.Getenv("TERM") != "dumb", colour: terminal.HasColours(out), started: time.Now(),
	}
}

const (
	rowFormat  = "  %s  %6s  %s\n"
	seenFormat = "                    %s\n"
)

// Print writes a line.
func (b *Board) Print(text string) {
	_, _ = fmt.Fprintln(b.out, text) // if the terminal has been closed, the error cannot be shown
}

// Progress writes what the demo waits for, in a line that the next Progress replaces; "" clears it.
func (b *Board) Progress(text string) {
	switch {
	case b.terminal && text == "":
		_, _ = fmt.Fprint(b.out, "\r\x1b[K")
	case b.terminal:
		_, _ = fmt.Fprintf(b.out, "\r\x1b[K  ... %.90s", text)
	case text != "":
		_, _ = fmt.Fprintf(b.out, "  ... %s\n", text)
	}
}

// Head writes the head of the table, below a title.
func (b *Board) Head(title string) {
	b.Progress("")
	b.started = time.Now()
	b.Print(title + "\n")
	_, _ = fmt.Fprintf(b.out, rowFormat, b.result(terminal.Plain, "RESULT"), "TIME", "STEP, and observations")
}

// Foot writes how many steps passed.
func (b *Board) Foot() {
	b.Print(fmt.Sprintf("\n  %d of %d steps passed, in %.0f s.", b.Steps-b.Failed, b.Steps, time.Since(b.started).Seconds()))
}

// Wrong returns text in the style of an error.
func (b *Board) Wrong(text string) string { return b.paint(terminal.Red, text) }

// result pads a result to its column, in a colour.
func (b *Board) result(c terminal.Colour, text string) string {
	return b.paint(c, fmt.Sprintf("%-6s", text))
}

// paint returns text in a colour, if the board has colours.
func (b *Board) paint(c terminal.Colour, text string) string {
	if !b.colour {
		return text
	}
	return c.Paint(text)
}

// Step runs a step and writes its row: a line for each observation, and then the error.
func (b *Board) Step(ctx context.Context, title string, do func(context.Context) ([]string, error)) {
	if ctx.Err() != nil {
		return
	}
	b.Steps++
	if b.terminal {
		b.Progress(title)
	}
	started := time.Now()
	seen, err := do(ctx)
	if ctx.Err() != nil {
		return
	}
	result := b.result(terminal.Green, "passed")
	if err != nil {
		b.Failed++
		result, seen = b.result(terminal.Red, "FAILED"), append(seen, b.Wrong(err.Error()))
	}
	b.Progress("")
	_, _ = fmt.Fprintf(b.out, rowFormat, result, fmt.Sprintf("%.1f s", time.Since(started).Seconds()), title)
	for _, line := range seen {
		_, _ = fmt.Fprintf(b.out, seenFormat, strings.TrimRight(line, " "))
	}
}

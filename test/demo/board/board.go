// Package board writes what a demo shows: a table with a row for each step, which says whether it held.
package board

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"
)

// Board writes the table.
type Board struct {
	out io.Writer
	// terminal has lines that can be written again.
	terminal bool
	colour   bool
	started  time.Time

	// Steps and Failed count the steps.
	Steps, Failed int
}

// New returns a Board that writes to a file, in colour if it is a terminal.
func New(out *os.File) *Board {
	info, err := out.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	return &Board{out: out, terminal: terminal, colour: terminal && os.Getenv("NO_COLOR") == "", started: time.Now()}
}

const (
	rowFormat  = "  %s  %6s  %s\n"
	seenFormat = "                    %s\n"
)

// Print writes a line.
func (b *Board) Print(text string) {
	_, _ = fmt.Fprintln(b.out, text) // if the terminal has gone, there is nobody to tell
}

// Progress says what is waited for, in a line that the next one replaces; "" clears it.
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
	_, _ = fmt.Fprintf(b.out, rowFormat, b.paint("", "RESULT"), "TIME", "STEP, and what was seen")
}

// Foot writes how many steps held.
func (b *Board) Foot() {
	b.Print(fmt.Sprintf("\n  %d of %d steps held, in %.0f s.", b.Steps-b.Failed, b.Steps, time.Since(b.started).Seconds()))
}

// paint pads a result to its column and colours it, 32 for green, 31 for red.
func (b *Board) paint(colour, text string) string {
	text = fmt.Sprintf("%-6s", text)
	if colour == "" || !b.colour {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// Step does one step and writes its row: what was seen, a line for each fact, and then what was amiss.
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
	result := b.paint("32", "held")
	if err != nil {
		b.Failed++
		result, seen = b.paint("31", "FAILED"), append(seen, err.Error())
	}
	b.Progress("")
	_, _ = fmt.Fprintf(b.out, rowFormat, result, fmt.Sprintf("%.1f s", time.Since(started).Seconds()), title)
	for _, line := range seen {
		_, _ = fmt.Fprintf(b.out, seenFormat, line)
	}
}

package check

import (
	"bytes"
	"fmt"

	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// Level is how much a line speaks against it.
type Level string

// Levels.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Line is one finding.
type Line struct {
	// Name of the check.
	Name  string `json:"name,omitempty"`
	Level Level  `json:"level"`
	Text  string `json:"text"`
	// Notes are the evidence, Do is what to do about it.
	Notes []string `json:"notes,omitempty"`
	Do    string   `json:"do,omitempty"`
	// About is the finding for programs.
	About any `json:"about,omitempty"`
	// whole has all Notes written as text, which are few enough, and not the first ones.
	whole bool
}

// write writes lines, and returns an error with exit.Unhealthy if one fails.
func write(out *bytes.Buffer, lines []Line, f printer.Format) error {
	failed := 0
	for _, l := range lines {
		if l.Level == Fail {
			failed++
		}
	}
	switch f {
	case printer.JSON:
		if err := printer.WriteJSON(out, append([]Line{}, lines...)); err != nil {
			return fmt.Errorf("write lines: %w", err)
		}
	case printer.YAML:
		if err := printer.WriteYAML(out, append([]Line{}, lines...)); err != nil {
			return fmt.Errorf("write lines: %w", err)
		}
	default:
		for _, l := range lines {
			l.write(out)
		}
	}
	if failed > 0 {
		return &exit.Error{Code: exit.Unhealthy, Err: fmt.Errorf("%s failed", printer.Plural(failed, "check"))}
	}
	return nil
}

// indent is as wide as the longest level.
const indent = "       "

func (l Line) write(out *bytes.Buffer) {
	text := l.Text
	if l.Name != "" {
		text = l.Name + ": " + text
	}
	fmt.Fprintf(out, "%-*s%s\n", len(indent), "["+string(l.Level)+"]", printer.OneLine(text))
	notes := l.Notes
	if !l.whole {
		notes = printer.FewNotes(notes)
	}
	for _, note := range notes {
		out.WriteString(indent + printer.OneLine(note) + "\n")
	}
	if l.Do != "" {
		out.WriteString(indent + "do: " + printer.OneLine(l.Do) + "\n")
	}
}

package check

import (
	"bytes"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

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

// check is one of what sondectl checks.
type check struct {
	name string
	// needs returns why there is nothing to look at, nil if there is. Default: there is.
	needs func(*facts) error
	say   func(*facts, *lines)
}

// errTold is why a check has no lines: another one has said why it cannot be made.
var errTold = errors.New("controlPlane says it")

// lines returns what the check says.
func (c check) lines(f *facts) []Line {
	l := &lines{name: c.name}
	var err error
	if c.needs != nil {
		err = c.needs(f)
	}
	switch {
	case err == nil:
		c.say(f, l)
	case !errors.Is(err, errTold):
		l.unread(err)
	}
	return l.all
}

// lines of one check.
type lines struct {
	name string
	all  []Line
}

func (l *lines) add(level Level, text, do string, notes ...string) {
	l.all = append(l.all, Line{Name: l.name, Level: level, Text: text, Do: do, Notes: notes})
}

func (l *lines) warn(text, do string, notes ...string) { l.add(Warn, text, do, notes...) }
func (l *lines) fail(text, do string, notes ...string) { l.add(Fail, text, do, notes...) }

// warnOf and failOf say nothing without notes.
func (l *lines) warnOf(notes []string, text, do string) {
	if len(notes) > 0 {
		l.warn(text, do, notes...)
	}
}

func (l *lines) failOf(notes []string, text, do string) {
	if len(notes) > 0 {
		l.fail(text, do, notes...)
	}
}

// ok is for a check that has said nothing against what it looks at.
func (l *lines) ok(text string) {
	if len(l.all) == 0 {
		l.add(OK, text, "")
	}
}

// unread says that the check needs what could not be read.
func (l *lines) unread(err error) {
	do := "mend that, and check again"
	if apierrors.IsForbidden(err) || status.Code(err) == codes.PermissionDenied {
		do = "have it checked by a user who has the right, or get that"
	}
	l.warn("not checked: "+err.Error(), do)
}

// write writes lines, and returns an error with exit.Unhealthy if one fails.
func write(out *bytes.Buffer, lines []Line, f printer.Format) error {
	failed := 0
	for _, l := range lines {
		if l.Level == Fail {
			failed++
		}
	}
	if err := printer.Write(out, f, append([]Line{}, lines...), func() {
		for _, l := range lines {
			l.write(out)
		}
	}); err != nil {
		return fmt.Errorf("write lines: %w", err)
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

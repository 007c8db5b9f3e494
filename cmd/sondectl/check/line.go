package check

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/terminal"
)

// Level is the severity of a line.
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
	// Notes are the evidence; Do is the advice.
	Notes []string `json:"notes,omitempty"`
	Do    string   `json:"do,omitempty"`
	// About holds the finding in JSON and YAML for programs.
	About any `json:"about,omitempty"`
	// whole writes all Notes as text instead of only the first ones.
	whole bool
}

// check produces the lines of one topic.
type check struct {
	name string
	// needs returns an error if the check lacks its input. Default nil: the input is always available.
	needs func(*facts) error
	say   func(*facts, *lines)
}

// errTold means that another check reports why this one has no input, so this one adds no line.
var errTold = errors.New("reported by the check controlPlane")

// lines runs the check.
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

// lines are the lines of one check.
type lines struct {
	name string
	all  []Line
}

func (l *lines) add(level Level, text, do string, notes ...string) {
	l.all = append(l.all, Line{Name: l.name, Level: level, Text: text, Do: do, Notes: notes})
}

func (l *lines) warn(text, do string, notes ...string) { l.add(Warn, text, do, notes...) }
func (l *lines) fail(text, do string, notes ...string) { l.add(Fail, text, do, notes...) }

// warnOf and failOf add nothing without notes.
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

// ok adds the line of a check that has found no problem.
func (l *lines) ok(text string) {
	if len(l.all) == 0 {
		l.add(OK, text, "")
	}
}

// unread adds a line for input that could not be read.
func (l *lines) unread(err error) {
	do := "fix the error, and check again"
	if apierrors.IsForbidden(err) || status.Code(err) == codes.PermissionDenied {
		do = "get the right, or ask a user who has it to check"
	}
	l.warn("not checked: "+err.Error(), do)
}

// write writes lines, and returns an error with exit.Unhealthy if one fails.
func write(out *printer.Output, lines []Line, f printer.Format) error {
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

var levelColours = map[Level]terminal.Colour{OK: terminal.Green, Warn: terminal.Yellow, Fail: terminal.Red}

// indent is as wide as the longest level.
const indent = "       "

func (l Line) write(out *printer.Output) {
	text := l.Text
	if l.Name != "" {
		text = l.Name + ": " + text
	}
	level := "[" + string(l.Level) + "]"
	out.Paint(levelColours[l.Level], level)
	out.WriteString(indent[min(len(level), len(indent)):] + printer.OneLine(text) + "\n")
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

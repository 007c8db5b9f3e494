package printer

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/sonde-mesh/sonde/internal/terminal"
)

// Output is the text of a command, with coloured parts.
type Output struct {
	bytes.Buffer
	painted []span
}

// span is a part of a text that has a colour.
type span struct {
	begin, end int
	colour     terminal.Colour
}

// Paint writes text in a colour, if the output has colours.
func (o *Output) Paint(c terminal.Colour, text string) {
	begin := o.Len()
	fmt.Fprint(o, text)
	if c != terminal.Plain {
		o.painted = append(o.painted, span{begin, o.Len(), c})
	}
}

// PaintLead writes a line, with its lead (such as "refused:") in the colour of that lead.
func (o *Output) PaintLead(line string) {
	lead, rest, found := strings.Cut(line, ":")
	colour := leads[lead]
	if !found || colour == terminal.Plain {
		fmt.Fprint(o, line)
		return
	}
	o.Paint(colour, lead+":")
	fmt.Fprint(o, rest)
}

// Show writes the whole output to w, which must come from Safe. Only colours from Paint reach a terminal as escape
// sequences.
func (o *Output) Show(w io.Writer, colours bool) error {
	raw, clean := w, func(text []byte) []byte { return text }
	if t, ok := w.(escaping); ok {
		raw, clean = t.terminal, escape
	}
	text, at := o.Bytes(), 0
	var out []byte
	if colours {
		for _, s := range o.painted {
			out = append(out, clean(text[at:s.begin])...)
			out = append(out, s.colour.Paint(string(clean(text[s.begin:s.end])))...)
			at = s.end
		}
	}
	_, err := raw.Write(append(out, clean(text[at:])...))
	return err
}

// stateColumns are the columns with states.
var stateColumns = []string{
	"AGENT", "SYNCED", "HEALTH", "ENDPOINTS", "STATE", "STATUS", "SEVERITY", "OUTCOME", "NODES", "VERDICT",
}

// stateColours maps states to colours. Other states are plain.
var stateColours = map[string]terminal.Colour{
	// of agents
	"lost": terminal.Red, "waiting": terminal.Red, "reconnecting": terminal.Yellow, "never-joined": terminal.Yellow,
	"stopped": terminal.Yellow,
	// of endpoints and outbounds
	"not-ready": terminal.Red, "no-endpoints": terminal.Red, "unknown": terminal.Red, "draining": terminal.Yellow,
	"outbounds-not-ready": terminal.Red, "outbound-not-ready": terminal.Red, "outbound-no-endpoints": terminal.Red,
	// of restarts
	"unhelpful": terminal.Red, "granted": terminal.Yellow, "restarting": terminal.Yellow, "open": terminal.Yellow,
	// of checks and problems
	"failed": terminal.Red, "critical": terminal.Red, "error": terminal.Red, "warning": terminal.Yellow,
}

// leads maps the text of a note before its colon to a colour.
var leads = map[string]terminal.Colour{
	"refused": terminal.Red, "cannot join": terminal.Red, "not ready": terminal.Red, "fails": terminal.Red,
	"no endpoint": terminal.Red, "calls fail": terminal.Red, "envoy does not run": terminal.Red,
	"envoy is not connected": terminal.Red, "envoy rejects calls": terminal.Red, "not ok": terminal.Red,
	"- clash": terminal.Red, "- warning": terminal.Yellow, "unsupported": terminal.Yellow, "drain": terminal.Yellow,
	"draining": terminal.Yellow, "draining endpoints get traffic": terminal.Yellow,
}

// colourOf returns the colour of a cell: the worst of its values.
func colourOf(column, cell string) terminal.Colour {
	if !slices.Contains(stateColumns, column) {
		return terminal.Plain
	}
	colour := terminal.Plain
	for value := range strings.SplitSeq(cell, ",") {
		switch value, _, _ = strings.Cut(value, "("); stateColour(value) {
		case terminal.Red:
			return terminal.Red
		case terminal.Yellow:
			colour = terminal.Yellow
		}
	}
	return colour
}

// stateColour returns the colour of a state, or of a share such as 1/2 or 1/2-ready.
func stateColour(state string) terminal.Colour {
	part, all, isShare := strings.Cut(strings.TrimSuffix(state, "-ready"), "/")
	n, err := strconv.Atoi(part)
	m, errAll := strconv.Atoi(all)
	switch {
	case !isShare || err != nil || errAll != nil:
		return stateColours[state]
	case n == 0 && m > 0:
		return terminal.Red
	case n < m || m == 0:
		return terminal.Yellow
	}
	return terminal.Plain
}

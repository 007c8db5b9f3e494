package parity

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// way is how a call reaches an application.
type way string

const (
	direct way = "without the mesh"
	// plain is a caller without a sidecar, to an inbound in mode PERMISSIVE.
	plain      way = "plain caller"
	permissive way = "between sidecars, PERMISSIVE"
	strict     way = "between sidecars, STRICT"
)

var ways = []way{direct, plain, permissive, strict}

// call is a row of the table.
type call struct {
	group, name string
	app         *application
	// client makes the call, and describes the result. Of an error it reports only what a client could act on.
	client func(ctx context.Context, at string) string
	// sees is how many times the application reports what it sees.
	sees int
	// want is the result without the mesh.
	want string
	// differs has the differences from the result without the mesh. Default: none.
	differs []difference
	// takes is how long a slow call takes. Slow calls are made only each night.
	takes time.Duration
	// program that makes the call, "" for this one. The call is skipped where the program is missing.
	program string
}

// difference is the result of a call in the mesh, and why it differs.
type difference struct {
	ways []way
	want string
	why  *reason
	// sometimes says that the call may also end as without the mesh, depending on timing.
	sometimes bool
	// before is the first minor version of Envoy without the difference, 40 for 1.40. Default: none.
	before int
}

// reason says why something cannot be as without the mesh. It names the option of Envoy, or says that Envoy has no option.
type reason struct{ text string }

var (
	inMesh    = []way{permissive, strict}
	throughIt = []way{plain, permissive, strict}
)

// expects reports whether a call ends as it must.
func (c *call) expects(w way, envoy int, outcome string) bool {
	d := c.difference(w, envoy)
	return d == nil && outcome == c.want || d != nil && (outcome == d.want || d.sometimes && outcome == c.want)
}

// difference returns the difference with an Envoy of that minor version, nil for none.
func (c *call) difference(w way, envoy int) *difference {
	for i := range c.differs {
		if before := c.differs[i].before; slices.Contains(c.differs[i].ways, w) && (before == 0 || envoy < before) {
			return &c.differs[i]
		}
	}
	return nil
}

// row returns the line of a call.
func row(c *call) string {
	return fmt.Sprintf("| %s | %s | %s | %s | %s |\n", cell(c.name), c.app.protocol, cell(c.want), differs(c, plain), differs(c, strict))
}

func differs(c *call, w way) string {
	if c.app.absent && w == plain {
		return "not made"
	}
	d := c.difference(w, 0) // the oldest Envoy
	if d == nil {
		return "the same"
	}
	text := cell(d.want)
	if d.sometimes {
		text += ", or the same"
	}
	if d.before > 0 {
		text = fmt.Sprintf("the same; Envoy before 1.%d: %s", d.before, text)
	}
	return text + fmt.Sprintf(" ([%d](#why))", number(d.why))
}

// number returns the number of a reason on the page.
func number(r *reason) int { return 1 + slices.Index(reasons(), r) }

// reasons returns the reasons in the table, in its order.
func reasons() []*reason {
	var all []*reason
	for _, c := range calls() {
		for _, d := range c.differs {
			if !slices.Contains(all, d.why) {
				all = append(all, d.why)
			}
		}
	}
	return all
}

// page returns docs/parity.md.
func page(all []*call) string {
	var text strings.Builder
	same := 0
	for _, c := range all {
		if len(c.differs) == 0 {
			same++
		}
	}
	fmt.Fprintf(&text, `# What comes of a call, without a mesh and through it

Written by the test in `+"`test/parity`"+`. Each call is made to an application without a mesh; by a caller without a sidecar, through the inbound of a
sidecar in mode PERMISSIVE; and between two sidecars, in mode PERMISSIVE and in mode STRICT, where the same must come of it. What the client gets is
compared, and where it says so what the application sees. "The port" is what the port speaks: its protocol in the mesh.

%d calls, %d of them the same.
`, len(all), same)
	group := ""
	for _, c := range all {
		if c.group != group {
			group = c.group
			fmt.Fprintf(&text, "\n## %s\n\n| call | the port | without a mesh | plain caller | between sidecars |\n|---|---|---|---|---|\n", group)
		}
		text.WriteString(row(c))
	}
	text.WriteString("\n## Why\n\n")
	for _, r := range reasons() {
		fmt.Fprintf(&text, "%d. %s\n", number(r), r.text)
	}
	text.WriteString("\n## What no row shows\n\n" + strings.Join(elsewhere, "\n") + "\n")
	return text.String()
}

// elsewhere are differences that the table does not show.
var elsewhere = []string{
	"- each request of HTTP has `x-forwarded-proto` in the mesh, and over mTLS `x-forwarded-client-cert`; an answer without `Date` gets one. Envoy has no " +
		"option that leaves them out",
	"- an application that closes a connection after an answer, without `Connection: close`, may close it under the next request: Envoy shares connections " +
		"to the application for 1 s, and answers 503 (`max_requests_per_connection` would make one for each request)",
	"- many new connections at once need a TLS handshake each between sidecars. Where a sidecar has so little processor that one takes more than 5 s (`connect_timeout`), its request gets " +
		"503; and in mode PERMISSIVE, a pod's sidecar that reads the first bytes after more than 1 s takes them for plain text (`listener_filters_timeout` is of a listener, and " +
		"in a pod all ports have one)",
	"- a silent client of a port of protocol `tcp` in mode PERMISSIVE waits for 1 s until the server, which speaks first, is heard " +
		"([server-first ports](reference/dataplane.md))",
}

// cell makes text fit into a table cell.
func cell(text string) string {
	return strings.NewReplacer("|", "&#124;", "<", "&lt;", ">", "&gt;", "*", `\*`, "_", `\_`, "`", "&#96;", "$", `\$`, "\\", `\\`).Replace(strings.ToValidUTF8(text, "\ufffd"))
}

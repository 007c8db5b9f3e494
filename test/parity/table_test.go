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

// reason says why something differs from the behaviour without the mesh. It names the option that Envoy has or lacks.
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

// row returns the line of a call. why is the link to the reasons.
func row(c *call, why string) string {
	return fmt.Sprintf("| %s | %s | %s | %s | %s |\n", cell(c.name), c.app.protocol, cell(c.want), differs(c, plain, why), differs(c, strict, why))
}

func differs(c *call, w way, why string) string {
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
	return text + fmt.Sprintf(" ([%d](%s#why))", number(d.why), why)
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

// page returns docs/parity.md, which has the calls that differ.
func page(all []*call) string {
	different := slices.DeleteFunc(slices.Clone(all), func(c *call) bool { return len(c.differs) == 0 })
	var text strings.Builder
	fmt.Fprintf(&text, `# Calls that end differently in the mesh

The test in `+"`test/parity`"+` makes each of %d calls without a mesh, from a caller without a sidecar (*plain caller*)
to a pod in mode PERMISSIVE, and between two sidecars in the modes PERMISSIVE and STRICT. %d calls always end as without
a mesh ([all results](../test/parity/results.md)). This page lists the others. *The same* means as without a mesh.

If an application needs such an HTTP or gRPC call, set the protocol of its port to `+"`tcp`"+`
([Kubernetes](kubernetes.md#services), [Dataplane](reference/dataplane.md)). Envoy then only forwards bytes, and balances
connections instead of requests.
`, len(all), len(all)-len(different))
	writeGroups(&text, merged(different), "call | without a mesh | in the mesh", func(c *call) string {
		return fmt.Sprintf("| %s | %s |\n", cell(c.name), ends(c))
	})
	text.WriteString("\n## Why\n\n")
	for _, r := range reasons() {
		fmt.Fprintf(&text, "%d. %s\n", number(r), r.text)
	}
	text.WriteString("\n## Differences that no row shows\n\n" + strings.Join(elsewhere, "\n") + "\n")
	return text.String()
}

// ends returns the cells with how a call ends without a mesh and in it.
func ends(c *call) string {
	in := differs(c, strict, "")
	if of := differs(c, plain, ""); of != in {
		in = "plain caller: " + of + "; between sidecars: " + in
	}
	return cell(c.want) + " | " + in
}

// merged returns the calls, with one for all calls of a group that end in the same way.
func merged(all []*call) []*call {
	var rows []*call
	for _, c := range all {
		i := slices.IndexFunc(rows, func(r *call) bool { return r.group == c.group && ends(r) == ends(c) })
		if i < 0 {
			row := *c
			rows = append(rows, &row)
			continue
		}
		rows[i].name += "; " + c.name
	}
	return rows
}

// resultsPage returns test/parity/results.md, which has all calls.
func resultsPage(all []*call) string {
	var text strings.Builder
	text.WriteString("# Results of all calls\n\nThe test in this directory writes this page. " +
		"[docs/parity.md](../../docs/parity.md) explains the calls that end differently in the mesh.\n")
	writeGroups(&text, all, "call | protocol of the port | without a mesh | plain caller | between sidecars", func(c *call) string {
		return row(c, "../../docs/parity.md")
	})
	return text.String()
}

// writeGroups writes a table with this header for each group of calls. "The port" is the port's protocol in the mesh.
func writeGroups(text *strings.Builder, all []*call, header string, row func(*call) string) {
	group := ""
	for _, c := range all {
		if c.group != group {
			group = c.group
			fmt.Fprintf(text, "\n## %s\n\n| %s |\n|%s\n", group, header, strings.Repeat("---|", 1+strings.Count(header, "|")))
		}
		text.WriteString(row(c))
	}
}

// elsewhere are differences that the table does not show.
var elsewhere = []string{
	"- Envoy adds `x-forwarded-proto` to HTTP requests, and `Date` to responses without it. It has no option " +
		"to omit them.",
	"- Over mTLS, HTTP requests have `x-forwarded-client-cert` with the caller's SPIFFE ID.",
	"- If an application closes a connection after a response without `Connection: close`, the next request may " +
		"fail with 503, because Envoy reuses connections to the application for 1 s. The option " +
		"`max_requests_per_connection` would prevent this, but Envoy would open a connection for each request.",
	"- A new connection between sidecars fails if its TLS handshake takes more than 5 s (`connect_timeout`), for " +
		"example because a sidecar has too little CPU. An HTTP request then gets 503.",
	"- In mode PERMISSIVE, the sidecar of a pod waits 1 s for the first bytes of a connection " +
		"(`listener_filters_timeout`), and then treats it as plaintext. A sidecar with too little CPU may read the " +
		"first bytes of mTLS too late, and the connection fails.",
	"- For the same reason, a client without a sidecar that waits for the server's first bytes gets them after " +
		"1 s, except on [server-first ports](reference/dataplane.md).",
}

// cell makes text fit into a table cell.
func cell(text string) string {
	return strings.NewReplacer("|", "&#124;", "<", "&lt;", ">", "&gt;", "*", `\*`, "_", `\_`, "`", "&#96;", "$", `\$`, "\\", `\\`).Replace(strings.ToValidUTF8(text, "\ufffd"))
}

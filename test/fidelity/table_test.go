package fidelity_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/test/fidelity/cases"
)

// table is docs/fidelity.md.
type table struct {
	body strings.Builder
	// cases by what became of them
	all, same, unchanged, differ, process int
	verdicts                              map[cases.Verdict]int
	reasons                               []string
}

func newTable() *table { return &table{verdicts: map[cases.Verdict]int{}} }

func (t *table) group(title string) {
	fmt.Fprintf(&t.body, "\n## %s\n\n| case | without a mesh | through the mesh | what the application sees |\n|---|---|---|---|\n", title)
}

// row of a case that ran.
func (t *table) row(c *cases.Case, r *result) {
	t.all++
	if c.Process {
		t.process++
	}
	requests := "the same"
	switch {
	case c.Differs != "":
		t.differ++
		requests = c.Differs
		t.reasons = append(t.reasons, fmt.Sprintf("- %s: %s", c.Name, c.Differs))
	case c.Unchanged:
		t.unchanged++
		requests = "the same: not rewritten, with a warning"
	default:
		t.same++
	}
	for _, v := range r.direct.verdicts {
		t.verdicts[v]++
	}
	fmt.Fprintf(&t.body, "| %s | %s | %s | %s |\n", cell(c.Name), verdictsOf(r.direct), verdictsOf(r.through), requests)
}

// verdictsOf returns the verdicts, equal ones once.
func verdictsOf(o *outcome) string {
	var texts []string
	for _, v := range slices.Compact(slices.Clone(o.verdicts)) {
		texts = append(texts, string(v))
	}
	return strings.Join(texts, ", ")
}

func (t *table) summary() string {
	return fmt.Sprintf("%d cases, %d of them by sondectl inject and sonde-dp probes: %d the same in verdict and request, %d not rewritten, with a warning, %d the same in verdict alone; %d Success, %d Warning, %d Failure, %d Errored",
		t.all, t.process, t.same, t.unchanged, t.differ, t.verdicts[cases.Success], t.verdicts[cases.Warning], t.verdicts[cases.Failure], t.verdicts[cases.Errored])
}

// String returns the file.
func (t *table) String() string {
	return `# What the kubelet finds, without a mesh and through it

Written by the test in ` + "`test/fidelity`" + `, with the kubelet's own code (Kubernetes 1.36.3: pkg/kubelet/prober, pkg/kubelet/lifecycle, pkg/probe).
Each case runs twice: the kubelet asks the application itself, and then what the injector made of the pod, with the handler
in between. The verdict must be the same, and so must be what the application sees: connections, the ClientHello, the
request line, Host, all headers in their order, and the body. A hook's verdict is Success or Failure.

In redirects, IP is the pod's address, and PORT, OTHER, TLS, CLOSED and VIRTUAL are ports of it: the application's, two more of it,
one on which nothing listens, and the handler's.

` + t.summary() + `.

What cannot be the same:

` + strings.Join(append(t.reasons, elsewhereDiffers...), "\n") + "\n" + t.body.String()
}

// elsewhereDiffers is what the table does not show.
var elsewhereDiffers = []string{
	"- the text of the kubelet's event: for a Failure it names the status that the handler sends; the reason is in the agent's log",
	"- the user agent of gRPC: `kube-probe/<version>` is the kubelet's, `grpc-go/<version>` behind it the agent's",
	"- the ClientHello, where kubelet and agent were built by different versions of Go",
	"- where a connection comes from: the pod's own address, and not the node's",
	"- how the connection of a TCP check ends: with a reset, after which the pod keeps no connection in TIME_WAIT; the kubelet closes it",
	"- invalid SETTINGS of an HTTP/2 server, such as frames of 1 byte: the libraries here and in the agent refuse them, those that Kubernetes 1.36.3 is " +
		"built with (golang.org/x/net 0.49, gRPC 1.79) do not. With these every other case was the same",
}

// cell makes text fit a table.
func cell(text string) string {
	return strings.NewReplacer("|", "&#124;", "<", "&lt;", ">", "&gt;", "*", `\*`, "_", `\_`, "`", "&#96;", "$", `\$`, "\\", `\\`).Replace(text)
}

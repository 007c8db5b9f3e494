package fidelity_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/test/fidelity/cases"
)

// table is the content of results.md.
type table struct {
	body strings.Builder
	// the number of cases by result
	all, same, unchanged, differ, process int
	verdicts                              map[cases.Verdict]int
	reasons                               []string
	// unseen are eventClasses that no case has had yet.
	unseen map[int]bool
}

func newTable() *table {
	t := &table{verdicts: map[cases.Verdict]int{}, unseen: map[int]bool{}}
	for i, class := range eventClasses {
		if !class.other {
			t.unseen[i] = true
		}
	}
	return t
}

func (t *table) group(title string) {
	fmt.Fprintf(&t.body, "\n## %s\n\n| case | without a mesh | through the mesh | what the application sees | per-port mode |\n|---|---|---|---|---|\n", title)
}

// row adds a case that ran.
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
	for _, class := range r.classes {
		delete(t.unseen, class)
	}
	fmt.Fprintf(&t.body, "| %s | %s | %s | %s | %s |\n", cell(c.Name), verdictsOf(r.direct), verdictsOf(r.through), requests, perPortCell(c, r))
}

// perPortCell returns the result of a case in per-port mode.
func perPortCell(c *cases.Case, r *result) string {
	verdicts := verdictsOf(r.perPort)
	switch {
	case c.Differs != "", c.Unchanged:
		return verdicts + ", as before"
	case r.perPort.direct:
		return verdicts + ", the same; TCP without the rules"
	}
	return verdicts + ", the same"
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
	return fmt.Sprintf(`%d cases, %d of them by sondectl inject and sonde-dp probes: %d the same in verdict and request, %d not rewritten, with a warning, %d the same in verdict alone; %d Success, %d Warning, %d Failure, %d Errored. It is the same in the per-port mode`,
		t.all, t.process, t.same, t.unchanged, t.differ, t.verdicts[cases.Success], t.verdicts[cases.Warning], t.verdicts[cases.Failure], t.verdicts[cases.Errored])
}

// String returns the file.
func (t *table) String() string {
	return `# What the kubelet finds, without a mesh and through it

Written by the test in ` + "`test/fidelity`" + `, with the kubelet's own code (Kubernetes 1.37.2: pkg/kubelet/prober, pkg/kubelet/lifecycle, pkg/probe).
Each case runs three times: the kubelet asks the application itself, then what the injector made of the pod, with the handler
in between, and then what the injector makes of it in the [per-port mode](../../docs/decisions/028-per-port-mode.md), with the handler in between, or for TCP the
kernel's rules, between two network namespaces. The verdict must be the same, and so must be what the application sees: connections, the ClientHello, the
request line, Host, all headers in their order, and the body. A hook's verdict is Success or Failure. Each night the kubelets of the other
[supported versions](../../docs/kubernetes.md#supported-api-servers-and-kubelets) ask the same cases; where their verdict is another one, the agent's is for them, too.

In redirects, IP is the pod's address, and PORT, OTHER, TLS, CLOSED and VIRTUAL are ports of it: the application's, two more of it,
one on which nothing listens, and the handler's.

` + t.summary() + `.

What cannot be the same:

` + strings.Join(append(t.reasons, elsewhereDiffers...), "\n") + `

## What the per-port mode cannot do, and why

Beyond what is above. "TCP without the rules" are pods with TCP probes and others: there the kubelet asks the application's port, to which the rules lead.

` + strings.Join(elsewherePerPort, "\n") + `

## The kubelet's events

All cases have an event of one of these forms, in which IP:PORT is where the kubelet asks, and other capitals stand for any text. The kubelet writes "Liveness", "Readiness" or "Startup" before it.

` + eventTable() + `
Where it says 503 there is no status, since the application has sent none that the kubelet could be told. Its own text has the address that it asked, which is the
agent's. The reason, in the kubelet's words, is in the event ` + "`ProbeFailed`" + ` of the control plane, in the agent's log, and in the body of the 503. What the
agent itself cannot tell, as it is overloaded or starts again, is ` + "`" + strings.TrimPrefix(unexpectedEOF, "probe ") + "`" + `. Texts of an application do not leave the
pod, with one exception: of a redirect that is not followed the kubelet gets ` + "`Location`" + ` and the first 10 KiB of the body
([decision 043](../../docs/decisions/043-what-the-kubelet-writes.md)). Probes and hooks by exec and sleep are left alone, and so are their events.

A failed postStart hook has one more text, in the status of the container (` + "`PostStartHookError`" + `): it ends in ` + "`EOF`" + ` in place of the reason, which is in the agent's log. A fallback from HTTPS to HTTP
is in that log, too.
` + t.body.String()
}

// elsewhereDiffers are differences that the table does not show.
var elsewhereDiffers = []string{
	"- the texts of some of the kubelet's events, see [below](#the-kubelets-events)",
	"- the user agent of gRPC: `kube-probe/<version>` is the kubelet's, `grpc-go/<version>` behind it the agent's",
	"- the ClientHello, where kubelet and agent were built by different versions of Go",
	"- where a connection comes from: the pod's own address, and not the node's",
	"- how the connection of a TCP check ends: with a reset, after which the pod keeps no connection in TIME_WAIT; the kubelet closes it",
	"- invalid SETTINGS of an HTTP/2 server, such as frames of 1 byte: the libraries of the agent refuse them, the libraries of kubelets until 1.36 " +
		"(golang.org/x/net 0.49) do not",
}

// elsewherePerPort are differences of the per-port mode that the table does not show.
var elsewherePerPort = []string{
	"- a gRPC probe finds a connection where the application has none, since the agent accepts it: the verdict comes from the call",
	"- a gRPC probe whose agent cannot tell is a Failure, since gRPC has nothing that the kubelet discards. While the agent is restarted, the guard holds the call",
	"- TCP probes from the pod itself, or to its loopback address, are refused: the rules are for callers outside the pod",
}

// cell makes text fit into a table cell.
func cell(text string) string {
	return strings.NewReplacer("|", "&#124;", "<", "&lt;", ">", "&gt;", "*", `\*`, "_", `\_`, "`", "&#96;", "$", `\$`, "\\", `\\`).Replace(text)
}

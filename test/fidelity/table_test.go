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
		return verdicts + ", as in unified mode"
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
	return fmt.Sprintf("%d cases: %d with the same verdict and request, %d not rewritten, with a warning, %d with the "+
		"same verdict but another request. %d of them use the programs `sondectl inject` and `sonde-dp probes`. "+
		"Verdicts: %d Success, %d Warning, %d Failure, %d Errored.",
		t.all, t.same, t.unchanged, t.differ, t.process,
		t.verdicts[cases.Success], t.verdicts[cases.Warning], t.verdicts[cases.Failure], t.verdicts[cases.Errored])
}

// String returns the file.
func (t *table) String() string {
	return `# What the kubelet finds, without a mesh and through it

The test in ` + "`test/fidelity`" + ` writes this page. It runs the kubelet's own code (Kubernetes 1.37.2:
` + "`pkg/kubelet/prober`, `pkg/kubelet/lifecycle`, `pkg/probe`" + `). Each case runs three times:

1. without a mesh: the kubelet calls the application;
2. through the mesh: the injector rewrites the pod, the kubelet calls the agent, and the agent calls the application;
3. in the [per-port mode](../../docs/decisions/028-per-port-mode.md): the same with a pod rewritten for this mode. If it
   has only TCP probes, the kubelet calls the application through the nftables rules of ` + "`kuma-init`" + `.

The three verdicts must be the same. The application must see the same connections, ClientHello, request line,
` + "`Host`" + `, headers in their order, and body. A hook's verdict is Success or Failure.

Each night the cases run with the kubelets of 1.33 to 1.38. If a version gives another verdict, the agent must give the
same one to this version. The exceptions are in ` + "[`cases/libraries.go`](cases/libraries.go)" + `:
their verdicts depend on the kubelet's libraries.

In redirects, ` + "`IP`" + ` is the pod's address, and ` + "`PORT`, `OTHER` and `TLS`" + ` are ports of the application.
Nothing listens on ` + "`CLOSED`" + `. The agent listens on ` + "`VIRTUAL`" + `.

` + t.summary() + `

[docs/fidelity.md](../../docs/fidelity.md) lists all differences. The cases show:

` + strings.Join(t.reasons, "\n") + `

*The same; TCP without the rules* marks pods with TCP probes and other probes or hooks. There the kubelet calls the
application's TCP port itself, without the rules of ` + "`kuma-init`" + `.

## The kubelet's events

Each case has events of these forms. ` + "`IP:PORT`" + ` is the address that the kubelet calls. Other words in
capitals stand for any text. For a probe, the kubelet writes before the text
` + "`Liveness probe`, `Readiness probe` or `Startup probe`" + `.
[docs/fidelity.md](../../docs/fidelity.md#the-kubelets-events) explains the differences, and where to find the reason.

` + eventTable() + t.body.String()
}

// cell makes text fit into a table cell.
func cell(text string) string {
	return strings.NewReplacer("|", "&#124;", "<", "&lt;", ">", "&gt;", "*", `\*`, "_", `\_`, "`", "&#96;", "$", `\$`, "\\", `\\`).Replace(text)
}

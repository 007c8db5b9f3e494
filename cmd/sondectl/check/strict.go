package check

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/settings"
)

const strictHelp = `Say what mode STRICT would refuse of what the proxies of PERMISSIVE meshes get, and from whom.

[fail]  it came within --quiet, or goes on. Each source is on a line of its own: whose address it is, whether that has a sidecar, how much, since when
[warn]  it came, but not within --quiet; or a proxy does not tell what it gets
[ok]    nothing came, and since when that is known

What pods have got that are gone is kept for a day, in the memory of the replica that answers. A line says since when. Probes that the agent
answers do not come to Envoy, and connections on which nothing is sent are not refused: neither counts.`

// defaultQuiet is how long nothing may have come.
const defaultQuiet = time.Hour

func strictCommand(out *bytes.Buffer, o Options) *cobra.Command {
	var mesh string
	quiet := defaultQuiet
	cmd := &cobra.Command{
		Use:     "strict",
		Short:   "Say whether a mesh may go from mode PERMISSIVE to STRICT",
		Long:    strictHelp,
		Example: "  sondectl check strict\n  sondectl check strict --mesh default --quiet 24h -o json",
		Args:    cobra.NoArgs,
	}
	output := printer.AddFormat(cmd, printer.Text, printer.JSON)
	cmd.Flags().StringVar(&mesh, "mesh", "", "only this `MESH`; default all")
	cmd.Flags().DurationVar(&quiet, "quiet", defaultQuiet, "how long nothing may have come that STRICT would refuse")
	settings.Must(cmd.RegisterFlagCompletionFunc("mesh", o.Meshes))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if quiet < 0 {
			return settings.Usagef("--quiet: %s: must be at least 0s", quiet)
		}
		var found *adminv1.CheckStrictResponse
		err := o.Call(cmd.Context(), func(ctx context.Context, api adminv1.AdminServiceClient) (err error) {
			found, err = api.CheckStrict(ctx, &adminv1.CheckStrictRequest{Mesh: mesh})
			return err
		})
		if err != nil {
			return err
		}
		lines, err := strictLines(found, time.Now(), quiet)
		if err != nil {
			return err
		}
		return write(out, lines, output.Value)
	}
	return cmd
}

// strictLines returns what is found, as of now.
func strictLines(found *adminv1.CheckStrictResponse, now time.Time, quiet time.Duration) ([]Line, error) {
	var lines []Line
	if missing := found.GetMissingReplicas(); len(missing) > 0 {
		lines = append(lines, Line{
			Level: Warn, Text: "replica " + strings.Join(missing, ", ") + " of the control plane is not heard: what agents with it have counted since is not known",
			Do: "see sondectl health",
		})
	}
	if len(found.GetMeshes()) == 0 {
		lines = append(lines, Line{Level: Warn, Text: "there is no mesh: nothing is known of what comes", Do: "create a Mesh in mode PERMISSIVE"})
	}
	for _, m := range found.GetMeshes() {
		of, err := meshLines(m, now, quiet)
		if err != nil {
			return nil, err
		}
		lines = append(lines, of...)
	}
	return lines, nil
}

func meshLines(m *adminv1.StrictMesh, now time.Time, quiet time.Duration) ([]Line, error) {
	name := "mesh " + m.GetMesh()
	switch m.GetMode() {
	case "STRICT":
		return []Line{{Level: OK, Text: name + " is in mode STRICT already"}}, nil
	case "":
		return []Line{{Level: Fail, Text: name + " has no mTLS: its proxies send all in plain text", Do: "set mode PERMISSIVE, then check again"}}, nil
	}
	var lines []Line
	for _, p := range m.GetPorts() {
		of, err := strictPortLines(name, p, now, quiet)
		if err != nil {
			return nil, err
		}
		lines = append(lines, of...)
	}
	if n := m.GetPortsLeftOut(); n > 0 {
		lines = append(lines, Line{Level: Fail, Text: fmt.Sprintf("%s: %d more ports get what STRICT would refuse, and are not shown", name, n)})
	}
	lines = append(lines, gapLines(name, m)...)
	where := ""
	if len(m.GetPorts()) > 0 {
		where = " to other ports"
	}
	return append(lines, Line{Level: OK, Text: fmt.Sprintf("%s: nothing has come%s that STRICT would refuse, %s", name, where, knownSince(m, now))}), nil
}

// knownSince says how much is known.
func knownSince(m *adminv1.StrictMesh, now time.Time) string {
	since := m.GetSince().AsTime()
	return fmt.Sprintf("since %s (%s), as far as %d of %d proxies tell; what pods have got that are gone is known since then, for a day",
		clock(since), printer.ShortDuration(max(0, now.Sub(since))), m.GetTelling(), m.GetProxies())
}

func clock(t time.Time) string { return t.Local().Format("2006-01-02 15:04") }

// strictPortLines returns a line for what has come to a port, and one for probes of kubelets.
func strictPortLines(name string, p *adminv1.StrictPort, now time.Time, quiet time.Duration) ([]Line, error) {
	about, err := printer.MessageJSON(p)
	if err != nil {
		return nil, err
	}
	subject := name + ": " + portText(p)
	var lines []Line
	if total := totalOf(p); total != nil {
		level, when := judge(total, now, quiet)
		l := Line{
			Level: level, Text: fmt.Sprintf("%s: %s %s, %s", subject, amount(total, p.GetRequests()), kindText(p.GetKind()), when),
			Do: adviceFor(p), About: about, whole: true,
		}
		for _, s := range p.GetSources() {
			l.Notes = append(l.Notes, fmt.Sprintf("from %s: %s", sourceText(s), tallyText(s.GetTally(), p.GetRequests(), now)))
		}
		if p.GetOthers() != nil {
			l.Notes = append(l.Notes, "from others, which are not told apart: "+tallyText(p.GetOthers(), p.GetRequests(), now))
		}
		lines = append(lines, l)
	}
	if probes := p.GetProbes(); probes != nil {
		level, when := judge(probes, now, quiet)
		lines = append(lines, Line{
			Level: level, Text: fmt.Sprintf("%s: probes of the kubelet come in plain text, %s: STRICT would fail them, and the pod would not be Ready", subject, when),
			Notes: []string{tallyText(probes, true, now)}, About: about,
			Do: "let the agent answer them: remove kuma.io/virtual-probes: disabled, and see sondectl probes explain for probes that cannot be translated",
		})
	}
	return lines, nil
}

func portText(p *adminv1.StrictPort) string {
	port := fmt.Sprintf("port %d", p.GetPort())
	if p.GetPort() == 0 {
		port = "further ports"
	}
	text := fmt.Sprintf("workload %s, %s", p.GetWorkload(), port)
	if len(p.GetServices()) > 0 {
		text += " (service " + printer.FirstFew(p.GetServices(), ", ") + ")"
	}
	return text
}

// totalOf returns the sum of all but probes, nil if nothing has come.
func totalOf(p *adminv1.StrictPort) *adminv1.StrictTally {
	var sum *adminv1.StrictTally
	add := func(t *adminv1.StrictTally) {
		switch {
		case t == nil:
		case sum == nil:
			sum = proto.CloneOf(t)
		default:
			sum.Count, sum.Open = sum.GetCount()+t.GetCount(), sum.GetOpen()+t.GetOpen()
			if t.GetLast().AsTime().After(sum.GetLast().AsTime()) {
				sum.Last = t.GetLast()
			}
		}
	}
	for _, s := range p.GetSources() {
		add(s.GetTally())
	}
	add(p.GetOthers())
	return sum
}

func judge(t *adminv1.StrictTally, now time.Time, quiet time.Duration) (level Level, when string) {
	ago := max(0, now.Sub(t.GetLast().AsTime()))
	if t.GetOpen() > 0 || ago < quiet {
		return Fail, "last " + printer.ShortDuration(ago) + " ago"
	}
	return Warn, "none for " + printer.ShortDuration(ago)
}

// amount says how many there were, and how many go on.
func amount(t *adminv1.StrictTally, requests bool) string {
	noun := "connection"
	if requests {
		noun = "request"
	}
	count, open := t.GetCount(), t.GetOpen()
	switch {
	case open == 0:
		return printer.Plural(int(count), noun)
	case requests:
		return fmt.Sprintf("%s, %d still open", printer.Plural(int(count), noun), open)
	case count == 0:
		return printer.Plural(int(open), "open "+noun)
	}
	return fmt.Sprintf("%s and %d open", printer.Plural(int(count), noun), open)
}

func tallyText(t *adminv1.StrictTally, requests bool, now time.Time) string {
	return fmt.Sprintf("%s since %s, last %s ago", amount(t, requests), clock(t.GetFirst().AsTime()), printer.ShortDuration(max(0, now.Sub(t.GetLast().AsTime()))))
}

func kindText(k adminv1.StrictPort_Kind) string {
	switch k {
	case adminv1.StrictPort_PLAINTEXT:
		return "in plain text"
	case adminv1.StrictPort_APPLICATION_TLS:
		return "with TLS of the application's own"
	case adminv1.StrictPort_NO_INBOUND:
		return "to a port without an inbound"
	}
	return "that STRICT would refuse, for a reason that this sondectl does not know"
}

func sourceText(s *adminv1.StrictSource) string {
	switch {
	case s.GetDataplane() != "":
		return fmt.Sprintf("%s, which has a sidecar: dataplane %s of mesh %s, workload %s", s.GetAddress(), s.GetDataplane(), s.GetMesh(), s.GetWorkload())
	case s.GetPod() != "":
		return fmt.Sprintf("%s, pod %s without a sidecar", s.GetAddress(), s.GetPod())
	case s.GetNode() != "":
		return fmt.Sprintf("%s, node %s: a pod with hostNetwork, the node itself, or who comes through it from outside", s.GetAddress(), s.GetNode())
	}
	return s.GetAddress() + ", which is no pod's that is known"
}

// adviceFor says what to do about a port.
func adviceFor(p *adminv1.StrictPort) string {
	if p.GetKind() == adminv1.StrictPort_NO_INBOUND {
		return "make it an inbound: name the port in a Service or in the pod's containers; or leave it out of the mesh: traffic.kuma.io/exclude-inbound-ports"
	}
	has := func(what func(*adminv1.StrictSource) bool) bool { return slices.ContainsFunc(p.GetSources(), what) }
	var all []string
	if has(func(s *adminv1.StrictSource) bool { return s.GetDataplane() != "" }) {
		all = append(all, "let senders with a sidecar call a service of the mesh by its name or ClusterIP: they call the address of a pod, or leave the port out of redirection")
	}
	if has(func(s *adminv1.StrictSource) bool { return s.GetPod() != "" }) {
		all = append(all, "inject the sidecar into the pods without one")
	}
	if p.GetOthers() != nil || has(func(s *adminv1.StrictSource) bool { return s.GetDataplane() == "" && s.GetPod() == "" }) {
		all = append(all, "let senders outside of the mesh come through a gateway, or leave the port out of it: traffic.kuma.io/exclude-inbound-ports")
	}
	return strings.Join(all, "; ")
}

// gapLines returns a line for each reason for which proxies do not tell.
func gapLines(name string, m *adminv1.StrictMesh) []Line {
	byReason := map[string][]string{}
	var reasons []string
	for _, g := range m.GetGaps() {
		if byReason[g.GetReason()] == nil {
			reasons = append(reasons, g.GetReason())
		}
		byReason[g.GetReason()] = append(byReason[g.GetReason()], g.GetDataplane())
	}
	var lines []Line
	for _, reason := range reasons {
		lines = append(lines, Line{
			Level: Warn, Text: fmt.Sprintf("%s: dataplane %s cannot tell what it gets: %s", name, printer.FirstFew(byReason[reason], ", "), reason),
			About: map[string]any{"dataplanes": byReason[reason]},
		})
	}
	if n := m.GetGapsLeftOut(); n > 0 {
		lines = append(lines, Line{Level: Warn, Text: fmt.Sprintf("%s: %d more proxies cannot tell what they get", name, n)})
	}
	return lines
}

package check

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/names"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/settings"
)

const strictHelp = `Show the traffic to proxies of PERMISSIVE meshes that mode STRICT would reject, and its sources.

[fail]  such traffic came within --quiet, or continues. A line for each source has its address and owner, whether the
        owner has a sidecar, how much traffic came, and since when
[warn]  such traffic came, but not within --quiet; or a proxy does not report its traffic
[ok]    no such traffic came; the line says since when this is known

The command asks the agents. Their Envoys report a request within about a second, and a connection when it ends or after
30 s. The replica that answers keeps the traffic of deleted pods in memory for a day; a line says since when. Probes
that the agent answers are not counted, since they do not reach Envoy, nor are connections on which nothing is sent,
since STRICT does not reject them.`

// defaultQuiet is the required time without traffic that STRICT would reject.
const defaultQuiet = time.Hour

func strictCommand(out *printer.Output, o Options) *cobra.Command {
	var mesh string
	quiet := defaultQuiet
	cmd := &cobra.Command{
		Use:     "strict",
		Short:   "Check whether a mesh is ready for mode STRICT",
		Long:    strictHelp,
		Example: "  sondectl check strict\n  sondectl check strict --mesh default --quiet 24h -o json",
		Args:    cobra.NoArgs,
	}
	output := printer.AddFormat(cmd, printer.Text, printer.JSON)
	cmd.Flags().Var(&names.Flag{To: &mesh, Among: []names.Kind{names.Mesh}}, "mesh", "only this `MESH`; default all")
	cmd.Flags().DurationVar(&quiet, "quiet", defaultQuiet, "required time without traffic that STRICT would reject")
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
		return write(out, strictLines(found, time.Now(), quiet), output.Value)
	}
	return cmd
}

// strict collects the lines of check strict.
type strict struct {
	lines
	now   time.Time
	quiet time.Duration
}

// strictLines returns the lines for the control plane's answer.
func strictLines(found *adminv1.CheckStrictResponse, now time.Time, quiet time.Duration) []Line {
	l := &strict{now: now, quiet: quiet}
	if missing := found.GetMissingReplicas(); len(missing) > 0 {
		l.warn("replica "+strings.Join(missing, ", ")+" of the control plane is disconnected: "+
			"recent counts from its agents are missing", "see sondectl health")
	}
	if len(found.GetMeshes()) == 0 {
		l.warn("no mesh found: no traffic is counted", "create a Mesh in mode PERMISSIVE")
	}
	for _, m := range found.GetMeshes() {
		l.mesh(m)
	}
	return l.all
}

func (l *strict) mesh(m *adminv1.StrictMesh) {
	name := "mesh " + m.GetMesh()
	switch m.GetMode() {
	case "STRICT":
		l.add(OK, name+" is already in mode STRICT", "")
		return
	case "":
		l.fail(name+" has no mTLS: its proxies send all traffic in plaintext", "set mode PERMISSIVE, then check again")
		return
	}
	for _, p := range m.GetPorts() {
		l.port(name, p)
	}
	if n := m.GetPortsLeftOut(); n > 0 {
		l.fail(fmt.Sprintf("%s: %d more ports get traffic that STRICT would reject, and are not shown", name, n), "")
	}
	l.gaps(name, m)
	where := ""
	if len(m.GetPorts()) > 0 {
		where = " to other ports"
	}
	level := OK
	if m.GetTelling() < m.GetProxies() {
		level = Warn // the traffic of the other proxies is unknown
	}
	l.add(level, fmt.Sprintf("%s: no traffic%s that STRICT would reject, %s", name, where, knownSince(m, l.now)), "")
}

// knownSince says since when, and of how many proxies, the traffic is known.
func knownSince(m *adminv1.StrictMesh, now time.Time) string {
	since := m.GetSince().AsTime()
	return fmt.Sprintf("since %s (%s), as reported by %d of %d proxies; traffic of deleted pods is included for a day",
		clock(since), printer.ShortDuration(max(0, now.Sub(since))), m.GetTelling(), m.GetProxies())
}

func clock(t time.Time) string { return t.Local().Format("2006-01-02 15:04") }

// port adds lines for the rejected traffic to a port, and for probes of kubelets.
func (l *strict) port(name string, p *adminv1.StrictPort) {
	subject := name + ": " + portText(p)
	if total := totalOf(p); total != nil {
		level, when := judge(total, l.now, l.quiet)
		var notes []string
		for _, s := range p.GetSources() {
			notes = append(notes, fmt.Sprintf("from %s: %s", sourceText(s), tallyText(s.GetTally(), p.GetRequests(), l.now)))
		}
		if p.GetOthers() != nil {
			notes = append(notes, "from other sources: "+tallyText(p.GetOthers(), p.GetRequests(), l.now))
		}
		l.all = append(l.all, Line{
			Level: level, Do: adviceFor(p), Notes: notes, About: printer.Message{Message: p}, whole: true,
			Text: fmt.Sprintf("%s: %s %s, %s", subject, amount(total, p.GetRequests()), kindText(p.GetKind()), when),
		})
	}
	if probes := p.GetProbes(); probes != nil {
		level, when := judge(probes, l.now, l.quiet)
		l.all = append(l.all, Line{
			Level: level, Notes: []string{tallyText(probes, true, l.now)}, About: printer.Message{Message: p},
			Text: subject + ": probes of the kubelet come in plaintext, " + when +
				": STRICT would reject them, and the pod would not be Ready",
			Do: "let the agent answer them: remove kuma.io/virtual-probes: disabled, " +
				"and see sondectl probes explain for probes that cannot be translated",
		})
	}
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

// totalOf returns the sum of all traffic except probes, nil without any.
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

// amount says how many requests or connections there were, and how many are open.
func amount(t *adminv1.StrictTally, requests bool) string {
	noun := "connection"
	if requests {
		noun = "request"
	}
	count, open := int(min(t.GetCount(), math.MaxInt)), int(t.GetOpen()) // agents may send any value
	switch {
	case open == 0:
		return printer.Plural(count, noun)
	case requests:
		return fmt.Sprintf("%s, %d still open", printer.Plural(count, noun), open)
	case count == 0:
		return printer.Plural(open, "open "+noun)
	}
	return fmt.Sprintf("%s and %d open", printer.Plural(count, noun), open)
}

func tallyText(t *adminv1.StrictTally, requests bool, now time.Time) string {
	return fmt.Sprintf("%s since %s, last %s ago", amount(t, requests), clock(t.GetFirst().AsTime()), printer.ShortDuration(max(0, now.Sub(t.GetLast().AsTime()))))
}

func kindText(k adminv1.StrictPort_Kind) string {
	switch k {
	case adminv1.StrictPort_PLAINTEXT:
		return "in plaintext"
	case adminv1.StrictPort_APPLICATION_TLS:
		return "with the application's own TLS"
	case adminv1.StrictPort_NO_INBOUND:
		return "to a port without an inbound"
	}
	return "that STRICT would reject, for a reason unknown to this sondectl"
}

func sourceText(s *adminv1.StrictSource) string {
	switch {
	case len(s.GetDataplanes()) > 0:
		return fmt.Sprintf("%s, a machine with several dataplanes (%s): one of them, or a program without a sidecar", s.GetAddress(), printer.FirstFew(s.GetDataplanes(), ", "))
	case s.GetMachine() && s.GetDataplane() != "":
		return fmt.Sprintf("%s, the machine of dataplane %s of mesh %s, workload %s: its application, or a program without a sidecar",
			s.GetAddress(), s.GetDataplane(), s.GetMesh(), s.GetWorkload())
	case s.GetMachine():
		return s.GetAddress() + ", a loopback address: any program in the proxy's pod or on its machine"
	case s.GetDataplane() != "":
		return fmt.Sprintf("%s, which has a sidecar: dataplane %s of mesh %s, workload %s", s.GetAddress(), s.GetDataplane(), s.GetMesh(), s.GetWorkload())
	case s.GetPod() != "":
		return fmt.Sprintf("%s, pod %s without a sidecar", s.GetAddress(), s.GetPod())
	case s.GetNode() != "":
		return fmt.Sprintf("%s, node %s: a pod with hostNetwork, the node itself, or a client outside of the cluster", s.GetAddress(), s.GetNode())
	}
	return s.GetAddress() + ", an unknown pod or client"
}

// adviceFor returns the advice for a port.
func adviceFor(p *adminv1.StrictPort) string {
	if p.GetKind() == adminv1.StrictPort_NO_INBOUND {
		return "make the port an inbound: declare it in a Service or in the pod's containers; or exclude it from the mesh: traffic.kuma.io/exclude-inbound-ports"
	}
	has := func(what func(*adminv1.StrictSource) bool) bool { return slices.ContainsFunc(p.GetSources(), what) }
	var all []string
	if has((*adminv1.StrictSource).GetMachine) {
		all = append(all, "on machines, make programs call through the sidecar: at an outbound of its Dataplane, or with redirection")
	}
	if has(func(s *adminv1.StrictSource) bool { return s.GetDataplane() != "" && !s.GetMachine() }) {
		all = append(all, "make senders with a sidecar call the service by its name or ClusterIP: they call a pod's address, or exclude the port from redirection")
	}
	if has(func(s *adminv1.StrictSource) bool { return s.GetPod() != "" }) {
		all = append(all, "inject the sidecar into the pods without one")
	}
	if p.GetOthers() != nil || has(func(s *adminv1.StrictSource) bool {
		return s.GetDataplane() == "" && s.GetPod() == "" && !s.GetMachine()
	}) {
		all = append(all, "make senders outside of the mesh use a gateway, or exclude the port from the mesh: traffic.kuma.io/exclude-inbound-ports")
	}
	return strings.Join(all, "; ")
}

// gaps adds lines for proxies that do not report their traffic, by reason.
func (l *strict) gaps(name string, m *adminv1.StrictMesh) {
	byReason := map[string][]string{}
	var reasons []string
	for _, g := range m.GetGaps() {
		if byReason[g.GetReason()] == nil {
			reasons = append(reasons, g.GetReason())
		}
		byReason[g.GetReason()] = append(byReason[g.GetReason()], g.GetDataplane())
	}
	for _, reason := range reasons {
		who := byReason[reason]
		l.all = append(l.all, Line{
			Level: Warn, About: map[string]any{"dataplanes": who},
			Text: fmt.Sprintf("%s: dataplane %s does not report its traffic: %s", name, printer.FirstFew(who, ", "), reason),
		})
	}
	if n := m.GetGapsLeftOut(); n > 0 {
		l.warn(fmt.Sprintf("%s: %d more proxies do not report their traffic", name, n), "")
	}
}

package check

import (
	"bytes"
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

const strictHelp = `Say what mode STRICT would refuse of what the proxies of PERMISSIVE meshes get, and from whom.

[fail]  it came within --quiet, or goes on. Each source is on a line of its own: whose address it is, whether that has a sidecar, how much, since when
[warn]  it came, but not within --quiet; or a proxy does not tell what it gets until now
[ok]    nothing came, and since when that is known

Agents are asked while it runs. Their Envoys tell them of a request within about a second, and of a connection once it has ended or lasts for 30 s.
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
	cmd.Flags().Var(&names.Flag{To: &mesh, Among: []names.Kind{names.Mesh}}, "mesh", "only this `MESH`; default all")
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
		return write(out, strictLines(found, time.Now(), quiet), output.Value)
	}
	return cmd
}

// strict collects what is found, as of now.
type strict struct {
	lines
	now   time.Time
	quiet time.Duration
}

// strictLines returns what is found, as of now.
func strictLines(found *adminv1.CheckStrictResponse, now time.Time, quiet time.Duration) []Line {
	l := &strict{now: now, quiet: quiet}
	if missing := found.GetMissingReplicas(); len(missing) > 0 {
		l.warn("replica "+strings.Join(missing, ", ")+" of the control plane is not heard: "+
			"what agents with it have counted since is not known", "see sondectl health")
	}
	if len(found.GetMeshes()) == 0 {
		l.warn("there is no mesh: nothing is known of what comes", "create a Mesh in mode PERMISSIVE")
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
		l.add(OK, name+" is in mode STRICT already", "")
		return
	case "":
		l.fail(name+" has no mTLS: its proxies send all in plain text", "set mode PERMISSIVE, then check again")
		return
	}
	for _, p := range m.GetPorts() {
		l.port(name, p)
	}
	if n := m.GetPortsLeftOut(); n > 0 {
		l.fail(fmt.Sprintf("%s: %d more ports get what STRICT would refuse, and are not shown", name, n), "")
	}
	l.gaps(name, m)
	where := ""
	if len(m.GetPorts()) > 0 {
		where = " to other ports"
	}
	level := OK
	if m.GetTelling() < m.GetProxies() {
		level = Warn // what the others get is not known
	}
	l.add(level, fmt.Sprintf("%s: nothing has come%s that STRICT would refuse, %s", name, where, knownSince(m, l.now)), "")
}

// knownSince says how much is known.
func knownSince(m *adminv1.StrictMesh, now time.Time) string {
	since := m.GetSince().AsTime()
	return fmt.Sprintf("since %s (%s), as far as %d of %d proxies tell; what pods have got that are gone is known since then, for a day",
		clock(since), printer.ShortDuration(max(0, now.Sub(since))), m.GetTelling(), m.GetProxies())
}

func clock(t time.Time) string { return t.Local().Format("2006-01-02 15:04") }

// port says what has come to a port, and which probes of kubelets.
func (l *strict) port(name string, p *adminv1.StrictPort) {
	subject := name + ": " + portText(p)
	if total := totalOf(p); total != nil {
		level, when := judge(total, l.now, l.quiet)
		var notes []string
		for _, s := range p.GetSources() {
			notes = append(notes, fmt.Sprintf("from %s: %s", sourceText(s), tallyText(s.GetTally(), p.GetRequests(), l.now)))
		}
		if p.GetOthers() != nil {
			notes = append(notes, "from others, which are not told apart: "+tallyText(p.GetOthers(), p.GetRequests(), l.now))
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
			Text: subject + ": probes of the kubelet come in plain text, " + when +
				": STRICT would fail them, and the pod would not be Ready",
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
	count, open := int(min(t.GetCount(), math.MaxInt)), int(t.GetOpen()) // as agents say
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
	case len(s.GetDataplanes()) > 0:
		return fmt.Sprintf("%s, a machine that several dataplanes share (%s): one of them, or a program without a sidecar", s.GetAddress(), printer.FirstFew(s.GetDataplanes(), ", "))
	case s.GetMachine() && s.GetDataplane() != "":
		return fmt.Sprintf("%s, the machine of dataplane %s of mesh %s, workload %s: its application, or a program without a sidecar",
			s.GetAddress(), s.GetDataplane(), s.GetMesh(), s.GetWorkload())
	case s.GetMachine():
		return s.GetAddress() + ", a loopback address: any program on the machine, or in the pod, of the proxy that got it"
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
	if has((*adminv1.StrictSource).GetMachine) {
		all = append(all, "let programs on a machine call through the sidecar there: at an outbound of its Dataplane, or with redirection")
	}
	if has(func(s *adminv1.StrictSource) bool { return s.GetDataplane() != "" && !s.GetMachine() }) {
		all = append(all, "let senders with a sidecar call a service of the mesh by its name or ClusterIP: they call the address of a pod, or leave the port out of redirection")
	}
	if has(func(s *adminv1.StrictSource) bool { return s.GetPod() != "" }) {
		all = append(all, "inject the sidecar into the pods without one")
	}
	if p.GetOthers() != nil || has(func(s *adminv1.StrictSource) bool {
		return s.GetDataplane() == "" && s.GetPod() == "" && !s.GetMachine()
	}) {
		all = append(all, "let senders outside of the mesh come through a gateway, or leave the port out of it: traffic.kuma.io/exclude-inbound-ports")
	}
	return strings.Join(all, "; ")
}

// gaps says for which reasons proxies do not tell.
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
			Text: fmt.Sprintf("%s: dataplane %s cannot tell what it gets: %s", name, printer.FirstFew(who, ", "), reason),
		})
	}
	if n := m.GetGapsLeftOut(); n > 0 {
		l.warn(fmt.Sprintf("%s: %d more proxies cannot tell what they get", name, n), "")
	}
}

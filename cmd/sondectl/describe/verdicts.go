package describe

import (
	"fmt"
	"iter"
	"slices"
	"time"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// Probe is a probe with its verdict, as its agent reports it. Its JSON keys are stable.
type Probe struct {
	// Container or Inbound names its owner.
	Container string `json:"container,omitempty"`
	Inbound   string `json:"inbound,omitempty"`
	// Probe is startup, liveness or readiness.
	Probe string `json:"probe"`
	// Verdict is success, warning, failure, errored, held or not asked, and "" if the agent has not checked it since it
	// started.
	Verdict string `json:"verdict,omitempty"`
	// Since is when the verdict began. AtLeast means that it may be older: it is the first since the agent started.
	Since   *time.Time `json:"since,omitempty"`
	AtLeast bool       `json:"sinceAtLeast,omitempty"`
	// Reason is why the last check did not succeed.
	Reason string `json:"reason,omitempty"`
	// Changes are the latest ones, oldest first, of Total since the agent started.
	Changes []VerdictChange `json:"changes,omitempty"`
	Total   uint32          `json:"totalChanges,omitempty"`
}

// VerdictChange is when a verdict began.
type VerdictChange struct {
	At      time.Time `json:"at"`
	Verdict string    `json:"verdict"`
}

// Verdicts that are not good.
const (
	VerdictSuccess = "success"
	VerdictWarning = "warning"
	VerdictFailure = "failure"
	VerdictErrored = "errored"
	VerdictHeld    = "held"
	// VerdictNotAsked is of a probe that the kubelet has stopped checking: how it would go is unknown.
	VerdictNotAsked = "not asked"
)

// Probes returns the probes of a proxy.
func Probes(v *adminv1.Verdicts) []Probe {
	var all []Probe
	for _, m := range v.GetProbes() {
		p := Probe{
			Container: m.GetContainer(), Inbound: m.GetInbound(), Probe: m.GetProbe(), Reason: m.GetReason(),
			Total: m.GetTotal(),
		}
		for _, c := range m.GetChanges() {
			p.Changes = append(p.Changes, VerdictChange{c.GetAt().AsTime().Truncate(time.Second), c.GetVerdict()})
		}
		if n := len(p.Changes); n > 0 {
			last := p.Changes[n-1]
			p.Verdict, p.Since, p.AtLeast = last.Verdict, &last.At, p.Total == 1
		}
		all = append(all, p)
	}
	return all
}

// ProbesLeftOut returns the number of probes of proxies that the control plane does not list.
func ProbesLeftOut(proxies []*adminv1.Proxy) uint32 {
	n := uint32(0)
	for _, p := range proxies {
		n += p.GetVerdicts().GetLeftOut()
	}
	return n
}

// ProbesLeftOutText says that n probes are not listed.
func ProbesLeftOutText(n uint32) string {
	return fmt.Sprintf("%d probes are not included: an agent reports at most %d, an answer has at most %d, the ones that do not succeed first",
		n, agentv1.MaxProbes, adminv1.MaxListedProbes)
}

// FailingProbes yields the probes of a proxy whose last check failed, or had no verdict.
func FailingProbes(p *adminv1.Proxy) iter.Seq[Probe] {
	return func(yield func(Probe) bool) {
		for _, probe := range Probes(p.GetVerdicts()) {
			if probe.Fails() && !yield(probe) {
				return
			}
		}
	}
}

// Fails reports whether the last check failed, or had no verdict.
func (p *Probe) Fails() bool {
	return slices.Contains([]string{VerdictFailure, VerdictErrored, VerdictHeld}, p.Verdict)
}

// Title names the probe.
func (p *Probe) Title() string {
	if p.Inbound != "" {
		return "serviceProbe of inbound " + p.Inbound
	}
	return p.Probe + " probe of container " + p.Container
}

// verdictClauses are the verdicts in a sentence about the probe.
var verdictClauses = map[string]string{
	"": "has not been checked since the agent started", VerdictSuccess: "passes", VerdictWarning: "passes with a warning",
	VerdictFailure: "fails", VerdictErrored: "has no verdict", VerdictHeld: "fails, and the failure is withheld",
	VerdictNotAsked: "is not checked by the kubelet: its container may not be running",
}

// Clause is what the probe does, with the reason, without a duration.
func (p *Probe) Clause() string {
	clause, known := verdictClauses[p.Verdict]
	if !known {
		clause = "has an unknown verdict, of a later version"
	}
	if p.Reason != "" {
		clause += ": " + p.Reason
	}
	return clause
}

// Age is how long the verdict has lasted, such as "3m" or "at least 3m", "" without one.
func (p *Probe) Age(now time.Time) string {
	if p.Since == nil {
		return ""
	}
	age := printer.ShortDuration(max(0, now.Sub(*p.Since)))
	if p.AtLeast {
		return "at least " + age
	}
	return age
}

// Lasts says how long a probe that Fails has done so.
func (p *Probe) Lasts(now time.Time) string {
	if p.Verdict == VerdictErrored {
		return "its probe has had no verdict for " + p.Age(now)
	}
	return "its probe has failed for " + p.Age(now)
}

// Text describes the probe in one line.
func (p *Probe) Text(now time.Time) string {
	age := p.Age(now)
	if age != "" {
		age = fmt.Sprintf(" (for %s)", age)
	}
	return p.Title() + age + " " + p.Clause()
}

package agentv1

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Limits of a Verdicts.
const (
	// MaxProbes is how many probes it may list.
	MaxProbes = 60
	// MaxChanges is how many changes of a probe it may list.
	MaxChanges = 10
	// MaxVerdictReason limits the reason of a verdict, in bytes: the rest is cut off.
	MaxVerdictReason = 128
)

// containerName matches the container names that Kubernetes allows.
var containerName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// IsContainerName reports whether Kubernetes allows a name for a container.
func IsContainerName(name string) bool { return containerName.MatchString(name) }

// verdictWords are the verdicts for users.
var verdictWords = map[VerdictChange_Verdict]string{
	VerdictChange_SUCCESS: "success", VerdictChange_WARNING: "warning", VerdictChange_FAILURE: "failure",
	VerdictChange_ERRORED: "errored", VerdictChange_HELD: "held",
	VerdictChange_NOT_ASKED: "not asked",
}

// Word returns the verdict for users, unknown for one of a later version.
func (v VerdictChange_Verdict) Word() string {
	if word, ok := verdictWords[v]; ok {
		return word
	}
	return "unknown"
}

// VerdictOf returns the verdict of a word, VERDICT_UNSPECIFIED for other words.
func VerdictOf(word string) VerdictChange_Verdict {
	for v, w := range verdictWords {
		if w == word {
			return v
		}
	}
	return VerdictChange_VERDICT_UNSPECIFIED
}

// CheckVerdicts returns an error for an invalid Verdicts, which names the field. Reasons are cut instead of checked.
func CheckVerdicts(m *Verdicts) error {
	if n := len(m.GetProbes()); n > MaxProbes {
		return fmt.Errorf("probes: %d, must be at most %d", n, MaxProbes)
	}
	type key struct{ container, inbound, probe string }
	seen := map[key]bool{}
	for _, p := range m.GetProbes() {
		k := key{p.GetContainer(), p.GetInbound(), p.GetProbe()}
		if seen[k] {
			return fmt.Errorf("probes: %s of %s%s: must occur only once", k.probe, k.container, k.inbound)
		}
		if err := checkVerdictsOf(p); err != nil {
			return err
		}
		seen[k] = true
	}
	return nil
}

func checkVerdictsOf(p *ProbeVerdicts) error {
	switch mesh.ProbeType(p.GetProbe()) {
	case mesh.ProbeStartup, mesh.ProbeLiveness, mesh.ProbeReadiness:
	default:
		return fmt.Errorf("probes.probe: %.50q, must be startup, liveness or readiness", p.GetProbe())
	}
	if err := checkOwner(p); err != nil {
		return err
	}
	n := len(p.GetChanges())
	if n > MaxChanges || uint64(p.GetTotal()) < uint64(n) || n == 0 && p.GetTotal() > 0 {
		return fmt.Errorf("probes.changes: %d of %d, must be at most %d, and 0 of 0 without a verdict", n, p.GetTotal(),
			MaxChanges)
	}
	return checkAges(p.GetChanges())
}

// checkOwner checks that a probe is of a container or of an inbound.
func checkOwner(p *ProbeVerdicts) error {
	if p.GetInbound() == "" {
		if !IsContainerName(p.GetContainer()) {
			return fmt.Errorf("probes.container: %.50q, must be the name of a container", p.GetContainer())
		}
		return nil
	}
	at, err := netip.ParseAddrPort(p.GetInbound())
	switch {
	case p.GetContainer() != "":
		return fmt.Errorf("probes.inbound: %.50q, must be empty for the probe of a container", p.GetInbound())
	case err != nil || at.Addr().Zone() != "":
		return fmt.Errorf("probes.inbound: %.50q, must be ip:port", p.GetInbound())
	}
	return nil
}

// checkAges checks that the oldest change comes first.
func checkAges(changes []*VerdictChange) error {
	const field = "probes.changes.ago"
	before := MaxAgo
	for _, c := range changes {
		if c.GetAgo() == nil {
			return fmt.Errorf("%s: missing, must be a duration from 0s to %s", field, before)
		}
		if err := checkAgo(field, c.GetAgo()); err != nil {
			return err
		}
		if c.GetAgo().AsDuration() > before {
			return fmt.Errorf("%s: %s, must be at most %s of the change before", field, c.GetAgo().AsDuration(), before)
		}
		before = c.GetAgo().AsDuration()
	}
	return nil
}

// AsOf returns the report as the agent would send it some time later, without fields of later versions. shorten limits
// the reasons.
func (m *Verdicts) AsOf(later time.Duration, shorten func(string) string) *Verdicts {
	later = min(max(0, later), MaxAgo)
	now := &Verdicts{LeftOut: m.GetLeftOut(), Probes: make([]*ProbeVerdicts, 0, len(m.GetProbes()))}
	for _, p := range m.GetProbes() {
		one := &ProbeVerdicts{
			Container: p.GetContainer(), Inbound: p.GetInbound(), Probe: p.GetProbe(), Total: p.GetTotal(),
			Reason: shorten(p.GetReason()), Changes: make([]*VerdictChange, 0, len(p.GetChanges())),
		}
		for _, c := range p.GetChanges() {
			ago := min(c.GetAgo().AsDuration()+later, MaxAgo)
			one.Changes = append(one.Changes, &VerdictChange{Verdict: c.GetVerdict(), Ago: durationpb.New(ago)})
		}
		now.Probes = append(now.Probes, one)
	}
	return now
}

// SameAs compares all but the ages, since the transport delay of messages differs: the total counts the changes.
func (m *Verdicts) SameAs(other *Verdicts) bool {
	return m.GetLeftOut() == other.GetLeftOut() &&
		slices.EqualFunc(m.GetProbes(), other.GetProbes(), func(a, b *ProbeVerdicts) bool {
			return a.GetContainer() == b.GetContainer() && a.GetInbound() == b.GetInbound() &&
				a.GetProbe() == b.GetProbe() && a.GetTotal() == b.GetTotal() && a.GetReason() == b.GetReason()
		})
}

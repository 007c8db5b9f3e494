package dashboard

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/status"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// maxText limits a text from outside, in bytes.
const maxText = 1000

func shorten(text string) string { return cut.Marked(text, maxText) }

// timeOf returns a time for JSON, nil for an unknown one.
func timeOf(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	at := t.AsTime()
	return &at
}

// Level says how a row is, beside its words.
type Level string

// Levels, the worst first.
const (
	Bad     Level = "bad"
	Warn    Level = "warn"
	Unknown Level = "unknown"
	Good    Level = "good"
)

var levels = []Level{Bad, Warn, Unknown, Good}

func shortened(texts []string) []string {
	var all []string
	for _, t := range texts {
		all = append(all, shorten(t))
	}
	return all
}

// maxListed limits the problems and the restarts of the page, the worst first.
const maxListed = 500

// Problems say what is wrong, as sondectl status does.
type Problems struct {
	OK       bool             `json:"ok"`
	Summary  string           `json:"summary"`
	Problems []status.Problem `json:"problems"`
	LeftOut  int              `json:"leftOut,omitempty"`
}

func problemsOf(r *status.Report) *Problems {
	n := min(len(r.Problems), maxListed)
	return &Problems{r.OK, r.Summary, r.Problems[:n], len(r.Problems) - n}
}

// Plane is the control plane.
type Plane struct {
	// Checks are the checks of the replica that answers.
	Checks []Check `json:"checks"`
	// Leader decides on restarts, "" if that is unknown. Missing replicas are disconnected from the one that answers.
	Leader  string   `json:"leader,omitempty"`
	Missing []string `json:"missing,omitempty"`
	// Agents and Envoys are the numbers of connected ones, by version, nil if that is unknown.
	Agents []Version `json:"agents,omitzero"`
	Envoys []Version `json:"envoys,omitzero"`
}

// Check is a health check of the control plane.
type Check struct {
	Group   string        `json:"group"`
	Name    string        `json:"name"`
	Level   Level         `json:"level"`
	Reason  string        `json:"reason,omitempty"`
	Changes []CheckChange `json:"changes,omitempty"` // oldest first
}

// CheckChange is a change of a check.
type CheckChange struct {
	At     *time.Time `json:"at,omitempty"`
	Level  Level      `json:"level"`
	Reason string     `json:"reason,omitempty"`
}

// Version is how many programs have a version.
type Version struct {
	Version string `json:"version"`
	Count   int    `json:"count"`
}

// planeOf describes the control plane. known means that the facts have the proxies.
func planeOf(f *status.Facts, known bool) *Plane {
	plane := &Plane{Checks: []Check{}, Leader: f.Restarts.GetRound().GetReplica(), Missing: f.Missing}
	for _, c := range f.Health {
		check := Check{Group: c.GetGroup(), Name: c.GetName(), Level: levelOf(c.GetStatus()), Reason: shorten(c.GetReason())}
		for _, change := range c.GetChanges() {
			check.Changes = append(check.Changes, CheckChange{
				timeOf(change.GetAt()), levelOf(change.GetStatus()), shorten(change.GetReason()),
			})
		}
		plane.Checks = append(plane.Checks, check)
	}
	if !known {
		return plane
	}
	agents, envoys := map[string]int{}, map[string]int{}
	for _, p := range f.Proxies {
		if a := p.GetAgent(); a != nil {
			agents[a.GetVersion()]++
			envoys[a.GetEnvoyVersion()]++
		}
	}
	plane.Agents, plane.Envoys = versionsOf(agents), versionsOf(envoys)
	return plane
}

func versionsOf(counts map[string]int) []Version {
	all := []Version{}
	for _, version := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, Version{version, counts[version]})
	}
	return all
}

func levelOf(s adminv1.HealthCheck_Status) Level {
	switch s {
	case adminv1.HealthCheck_OK:
		return Good
	case adminv1.HealthCheck_FAILED:
		return Bad
	case adminv1.HealthCheck_WARNING:
		return Warn
	default:
		return Unknown
	}
}

package restartbudget

import "fmt"

// Verdict is the result for the agent. It is a metric label.
type Verdict string

// Verdicts.
const (
	// Granted lets the container restart: the agent passes the failure to the kubelet.
	Granted Verdict = "granted"
	// Held does not pass the failure to the kubelet.
	Held Verdict = "held"
	// Native leaves the restart to the kubelet, without a grant.
	Native Verdict = "native"
)

// Reason is the first rule that decided, in the order of this list. It is a metric label.
type Reason string

// Reasons.
const (
	ReasonOff           Reason = "off"
	ReasonUnknown       Reason = "unknown_container"
	ReasonStale         Reason = "stale_request"
	ReasonNative        Reason = "native"
	ReasonSuspended     Reason = "suspended"
	ReasonBlacklisted   Reason = "blacklisted"
	ReasonGrantedBefore Reason = "granted_before"
	ReasonUnread        Reason = "unread"
	ReasonFrozen        Reason = "frozen"
	ReasonBreaker       Reason = "breaker_open"
	ReasonGlobalLimit   Reason = "per_minute"
	ReasonNodeLimit     Reason = "per_node_per_minute"
	ReasonBudgetLimit   Reason = "budget_per_minute"
	ReasonUnhelpful     Reason = "unhelpful"
	ReasonNoneAllowed   Reason = "none_allowed"
	ReasonInProgress    Reason = "in_progress"
	ReasonUnavailable   Reason = "unavailable"
	ReasonPodBusy       Reason = "pod_busy"
	ReasonGranted       Reason = "granted"
)

// Decision on a request.
type Decision struct {
	Request Request
	Verdict Verdict
	// DryRun decisions have no effect: the kubelet gets the real result.
	DryRun bool
	Cause
	// Grant is nil unless Verdict is Granted. If Reason is ReasonGranted, it is a new grant, which the caller must
	// write; otherwise it is the container's existing grant.
	Grant *Grant
}

// Cause is the result of a rule.
type Cause struct {
	Reason Reason
	// Count is the number that the rule limits, Limit its maximum; both are 0 for rules without a limit. For a stale
	// request, Count is the restart count in the request, and Limit the container's.
	Count, Limit int
	// Source names what set the limit, or what prevents the restart.
	Source string
}

// String describes the reason.
func (d Decision) String() string {
	text := plainTexts[d.Reason]
	if text == "" {
		text = d.text()
	}
	if d.DryRun {
		return "dry run: " + text
	}
	return text
}

// plainTexts of reasons without figures.
var plainTexts = map[Reason]string{
	ReasonOff:           "guarded liveness is off, the kubelet decides",
	ReasonUnknown:       "the control plane does not know this container",
	ReasonNative:        "the pod is annotated sonde.dev/liveness: native, the kubelet decides",
	ReasonSuspended:     "the pod is annotated sonde.dev/liveness: suspended",
	ReasonGrantedBefore: "a restart is granted already",
	ReasonGranted:       "a restart is granted",
}

func (d Decision) text() string {
	switch d.Reason {
	case ReasonStale:
		return fmt.Sprintf("the request has restart count %d, but the container has %d", d.Count, d.Limit)
	case ReasonBlacklisted:
		return d.Source + " is on the blacklist"
	case ReasonUnread:
		return "the cluster cannot be read: " + d.Source
	case ReasonFrozen:
		return "the mesh is frozen: " + d.Source
	case ReasonBreaker:
		return "the breaker is open: " + d.Source
	case ReasonGlobalLimit, ReasonNodeLimit, ReasonBudgetLimit:
		return fmt.Sprintf("%d of %d restarts within a minute were granted (%s)", d.Count, d.Limit, d.Source)
	case ReasonUnhelpful:
		return fmt.Sprintf("%d restarts in a row did not help: waiting for another pod template, or for sondectl restarts release", d.Count)
	case ReasonNoneAllowed:
		return d.Source + " allows no restart"
	case ReasonInProgress:
		return fmt.Sprintf("%d of %d restarts are in progress (%s)", d.Count, d.Limit, d.Source)
	case ReasonUnavailable:
		return fmt.Sprintf("the pod is Ready, and without it %d pods would be unavailable of at most %d (%s)",
			d.Count+1, d.Limit, d.Source)
	case ReasonPodBusy:
		return "container " + d.Source + " of the same pod is restarting"
	}
	panic("no text for reason " + string(d.Reason))
}

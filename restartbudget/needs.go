package restartbudget

// Needs describes what must happen before the container may restart.
func (d Decision) Needs() string {
	if d.DryRun {
		return "nothing: in a dry run the kubelet restarts it"
	}
	if text := needsTexts[d.Reason]; text != "" {
		return text
	}
	switch d.Reason {
	case ReasonBlacklisted:
		return "remove " + d.Source + " from the blacklist of the control plane"
	case ReasonUnhelpful:
		return "another pod template, or sondectl restarts release " + d.Request.Workload.String()
	case ReasonNoneAllowed:
		return d.Source + " has to allow a restart"
	case ReasonPodBusy:
		return "the restart of container " + d.Source + " has to end"
	}
	panic("no text for reason " + string(d.Reason))
}

// needsTexts of reasons without details.
var needsTexts = map[Reason]string{
	ReasonOff:           "nothing: the kubelet restarts it",
	ReasonNative:        "nothing: the kubelet restarts it",
	ReasonUnknown:       "the control plane has to read the pod, and its probe table has to guard the container",
	ReasonStale:         "its agent has to repeat the request, which it does after the next check",
	ReasonSuspended:     "remove the annotation sonde.dev/liveness from the pod",
	ReasonGrantedBefore: "nothing: the kubelet restarts it once its check has failed failureThreshold times",
	ReasonUnread:        "the API server has to answer the control plane again",
	ReasonFrozen:        "most nodes and proxies have to be seen again, or an operator has to thaw the zone: sondectl thaw --zone",
	ReasonBreaker:       "fewer containers have to fail within a minute",
	ReasonGlobalLimit:   "a minute has to pass after other restarts were granted",
	ReasonNodeLimit:     "a minute has to pass after other restarts on the node were granted",
	ReasonBudgetLimit:   "a minute has to pass after other restarts of the RestartBudget were granted",
	ReasonInProgress:    "a restart that is in progress has to end: its pod is Ready, and its probe has been checked again, or ten minutes are over",
	ReasonUnavailable:   "other pods of the workload have to be Ready",
	ReasonGranted:       "nothing: the kubelet restarts it once its check has failed failureThreshold times",
}

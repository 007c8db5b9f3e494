package restartbudget

// Needs says what has to happen for the container to restart.
func (d Decision) Needs() string {
	if d.DryRun {
		return "nothing: in a dry run the kubelet restarts it by itself"
	}
	if text := needsTexts[d.Reason]; text != "" {
		return text
	}
	switch d.Reason {
	case ReasonBlacklisted:
		return "take " + d.Source + " from the blacklist of the control plane"
	case ReasonUnhelpful:
		return "another pod template, or sondectl restarts release " + d.Request.Workload.String()
	case ReasonNoneAllowed:
		return d.Source + " has to allow a restart"
	case ReasonPodBusy:
		return "the restart of container " + d.Source + " has to end"
	}
	panic("no text for reason " + string(d.Reason))
}

// needsTexts are those of reasons that name nothing.
var needsTexts = map[Reason]string{
	ReasonOff:           "nothing: the kubelet restarts it by itself",
	ReasonNative:        "nothing: the kubelet restarts it by itself",
	ReasonUnknown:       "the control plane has to read the pod, and its probe table has to guard the container",
	ReasonStale:         "its agent has to ask again, as it does with the next check",
	ReasonSuspended:     "remove the annotation sonde.dev/liveness from the pod",
	ReasonGrantedBefore: "nothing: the kubelet restarts it once its check has failed failureThreshold times",
	ReasonUnread:        "the API server has to answer the control plane again",
	ReasonFrozen:        "most nodes and proxies have to be seen again, or an operator has to thaw the zone: sondectl thaw --zone",
	ReasonBreaker:       "less has to fail within a minute: it is not this container alone",
	ReasonGlobalLimit:   "a minute has to pass since others were granted",
	ReasonNodeLimit:     "a minute has to pass since others on the node were granted",
	ReasonBudgetLimit:   "a minute has to pass since others of the RestartBudget were granted",
	ReasonInProgress:    "a restart that is in progress has to end: its pod is Ready, and its probe has been checked again, or ten minutes are over",
	ReasonUnavailable:   "other pods of the workload have to be Ready",
	ReasonGranted:       "nothing: the kubelet restarts it once its check has failed failureThreshold times",
}

package restarts

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/restartbudget"
)

// metrics of every replica. The one that leads alone has other values than 0, so that a sum over all replicas is right.
type metrics struct {
	decisions *prometheus.CounterVec
}

// reasonsOf are the reasons that decisions have, by verdict.
var reasonsOf = map[restartbudget.Verdict][]restartbudget.Reason{
	restartbudget.Granted: {restartbudget.ReasonGranted, restartbudget.ReasonGrantedBefore},
	restartbudget.Native:  {restartbudget.ReasonOff},
	restartbudget.Held: {
		restartbudget.ReasonUnknown, restartbudget.ReasonStale, restartbudget.ReasonSuspended, restartbudget.ReasonBlacklisted, restartbudget.ReasonUnread, restartbudget.ReasonFrozen, restartbudget.ReasonBreaker,
		restartbudget.ReasonGlobalLimit, restartbudget.ReasonNodeLimit, restartbudget.ReasonBudgetLimit, restartbudget.ReasonUnhelpful,
		restartbudget.ReasonNoneAllowed, restartbudget.ReasonInProgress, restartbudget.ReasonUnavailable, restartbudget.ReasonPodBusy,
	},
}

func newMetrics(r *Restarts, registerer prometheus.Registerer) *metrics {
	m := &metrics{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sonde_restart_decisions_total",
		Help: "Decisions on containers whose guarded liveness probe fails, by decision (granted, held or native) and reason, of the replica that leads: counted when the decision on a container becomes another one, not each time that it is made again. Those of a dry run are among them.",
	}, []string{"decision", "reason"})}
	for verdict, reasons := range reasonsOf {
		for _, reason := range reasons {
			m.decisions.WithLabelValues(string(verdict), string(reason))
		}
	}
	if registerer != nil {
		registerer.MustRegister(m.decisions, stateMetrics{r})
	}
	return m
}

var (
	breakerOpen = prometheus.NewDesc("sonde_restart_breaker_open",
		"1 at the replica that leads while so many containers fail at once that no restart is granted.", nil, nil)
	breakerNamespace = prometheus.NewDesc("sonde_restart_breaker_namespace_open",
		"1 at the replica that leads while so many containers of one namespace fail at once that no restart is granted in it alone.", nil, nil)
	grantsInProgress = prometheus.NewDesc("sonde_restart_grants_in_progress",
		"Restarts of containers that are granted and take a place in the budgets of their workloads, at the replica that leads.", nil, nil)
	livenessUnguarded = prometheus.NewDesc("sonde_liveness_unguarded",
		"Liveness probes of pods with guarded liveness that are left to the kubelet, by reason, at the replica that leads. Those of pods without a sidecar (no_sidecar) are counted every five minutes.", []string{"reason"}, nil)
)

var budgetsNotUsed = prometheus.NewDesc("sonde_restart_budgets_invalid",
	"RestartBudgets that are not used as they are written, so that what they select does not restart, by reason, at the replica that leads: invalid, too_large (its selector), or too_many (its namespace has too many).", []string{"reason"}, nil)

// stateMetrics says what is now.
type stateMetrics struct{ *Restarts }

// Describe implements prometheus.Collector.
func (m stateMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- breakerOpen
	to <- breakerNamespace
	to <- grantsInProgress
	to <- livenessUnguarded
	to <- budgetsNotUsed
}

// Collect implements prometheus.Collector.
func (m stateMetrics) Collect(to chan<- prometheus.Metric) {
	var open, namespaces, inProgress float64
	var left [whys]int
	var unused map[notUsed]int
	if round := m.round.Load(); round != nil {
		if round.Breaker.Open {
			open = 1
		}
		if round.Breaker.Alone.Held > 0 {
			namespaces = 1
		}
		inProgress, left = m.inProgress(), m.unguarded()
		unused = m.cluster.unusedBudgets()
	}
	to <- prometheus.MustNewConstMetric(breakerOpen, prometheus.GaugeValue, open)
	to <- prometheus.MustNewConstMetric(breakerNamespace, prometheus.GaugeValue, namespaces)
	to <- prometheus.MustNewConstMetric(grantsInProgress, prometheus.GaugeValue, inProgress)
	for _, reason := range allNotUsed {
		to <- prometheus.MustNewConstMetric(budgetsNotUsed, prometheus.GaugeValue, float64(unused[reason]), string(reason))
	}
	for reason, n := range left {
		to <- prometheus.MustNewConstMetric(livenessUnguarded, prometheus.GaugeValue, float64(n), whyNames[reason])
	}
}

// inProgress counts the grants that are not over.
func (r *Restarts) inProgress() (n float64) {
	for _, key := range r.grants.Keys() {
		g := r.grants.Get(key)
		if g == nil || !g.Ended.IsZero() {
			continue
		}
		if p := r.cluster.pods.Get(g.pod); p != nil && p.uid == g.ID.PodUID {
			n++
		}
	}
	return n
}

// unguarded counts the liveness probes that are not guarded.
func (r *Restarts) unguarded() (all [whys]int) {
	old := r.withoutGrants()
	all[whyNoSidecar] = int(r.missed.Load())
	for _, key := range r.cluster.pods.Keys() {
		p := r.cluster.pods.Get(key)
		if p == nil {
			continue
		}
		for reason, n := range p.unguarded {
			all[reason] += int(n)
		}
		if old[key] {
			all[whyOldAgent] += len(p.Containers)
		}
	}
	return all
}

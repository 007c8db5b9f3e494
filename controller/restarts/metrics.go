package restarts

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/restartbudget"
)

// metrics of a replica. Only the leader's values differ from 0, so that a sum over all replicas is correct.
type metrics struct {
	decisions *prometheus.CounterVec
	unheld    *prometheus.CounterVec
}

// reasonsOf are the possible reasons of decisions, by verdict.
var reasonsOf = map[restartbudget.Verdict][]restartbudget.Reason{
	restartbudget.Granted: {restartbudget.ReasonGranted, restartbudget.ReasonGrantedBefore},
	restartbudget.Native:  {restartbudget.ReasonOff},
	restartbudget.Held: {
		restartbudget.ReasonUnknown, restartbudget.ReasonStale, restartbudget.ReasonSuspended,
		restartbudget.ReasonBlacklisted, restartbudget.ReasonUnread, restartbudget.ReasonFrozen, restartbudget.ReasonBreaker,
		restartbudget.ReasonGlobalLimit, restartbudget.ReasonNodeLimit, restartbudget.ReasonBudgetLimit,
		restartbudget.ReasonUnhelpful,
		restartbudget.ReasonNoneAllowed, restartbudget.ReasonInProgress, restartbudget.ReasonUnavailable,
		restartbudget.ReasonPodBusy,
	},
}

func newMetrics(r *Restarts, registerer prometheus.Registerer) *metrics {
	m := &metrics{decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sonde_restart_decisions_total",
		Help: "Decisions on containers whose guarded liveness probe fails, by decision (granted, held or native) and reason, at the leader: counted when the decision on a container changes. Includes decisions of a dry run.",
	}, []string{"decision", "reason"}), unheld: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sonde_liveness_unheld_restarts_total",
		Help: "Restarts without a grant of containers whose failure was held back, by node, at the leader: the kubelet of the node counts answers that it should discard. After the first 100 nodes, all others are counted as other.",
	}, []string{"node"})}
	for verdict, reasons := range reasonsOf {
		for _, reason := range reasons {
			m.decisions.WithLabelValues(string(verdict), string(reason))
		}
	}
	if registerer != nil {
		registerer.MustRegister(m.decisions, m.unheld, stateMetrics{r})
	}
	return m
}

var (
	breakerOpen = prometheus.NewDesc("sonde_restart_breaker_open",
		"1 at the leader while the circuit breaker is open: many containers fail at once, and no restart is granted.", nil, nil)
	breakerNamespace = prometheus.NewDesc("sonde_restart_breaker_namespace_open",
		"1 at the leader while the circuit breaker of a single namespace is open: many of its containers fail at once, and no restart is granted in it.", nil, nil)
	grantsInProgress = prometheus.NewDesc("sonde_restart_grants_in_progress",
		"Granted restarts that still count against the budgets of their workloads, at the leader.", nil, nil)
	livenessUnguarded = prometheus.NewDesc("sonde_liveness_unguarded",
		"Liveness probes of pods with guarded liveness that the kubelet runs itself, by reason, at the leader. Probes of pods without a sidecar (no_sidecar) are counted every five minutes.", []string{"reason"}, nil)
)

var budgetsNotUsed = prometheus.NewDesc("sonde_restart_budgets_invalid",
	"RestartBudgets that are not used as written, so that the pods that they select do not restart, by reason, at the leader: invalid, too_large (its selector), or too_many (its namespace has too many).", []string{"reason"}, nil)

// stateMetrics collects the current state.
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

// inProgress counts the grants that have not ended.
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

// unguarded counts the unguarded liveness probes by reason.
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

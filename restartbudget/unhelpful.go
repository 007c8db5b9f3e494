package restartbudget

// maxUnhelpful is how many restarts in a row may not help before a workload waits.
const maxUnhelpful = 2

// templateKey identifies the pods of a workload with one template: restarts of others say nothing of them.
type templateKey struct {
	workload WorkloadID
	template string
}

// count counts the restart of a grant if it did not help, or forgets those before if it did. A workload that waits goes on waiting.
func (s *State) count(g Grant) {
	key := templateKey{g.Workload, g.Template}
	switch {
	case g.Outcome == Unhelpful:
		s.unhelpful[key]++
	case g.Outcome == Helped && s.unhelpful[key] < maxUnhelpful:
		delete(s.unhelpful, key)
	}
}

// Unhelpful reports whether restarts of pods of a workload with that template have not helped, so that their grants must be kept.
func (s *State) Unhelpful(workload WorkloadID, template string) bool {
	return s.unhelpful[templateKey{workload, template}] > 0
}

// Waits reports whether pods of a workload with that template are not restarted, since too many restarts of them have not helped.
func (s *State) Waits(workload WorkloadID, template string) bool {
	return s.unhelpful[templateKey{workload, template}] >= maxUnhelpful
}

// forgetTemplates forgets templates that no pod has any more.
func (s *State) forgetTemplates(in Input) {
	for key := range s.unhelpful {
		if !in.Workloads[key.workload].has(key.template) {
			delete(s.unhelpful, key)
		}
	}
}

func (w *Workload) has(template string) bool {
	if w == nil {
		return false
	}
	for _, pod := range w.Pods {
		if pod.Template == template {
			return true
		}
	}
	return false
}

package restartbudget

// maxUnhelpful is the number of consecutive unhelpful restarts after which a workload waits.
const maxUnhelpful = 2

// templateKey identifies the pods of a workload with one template. Restarts of pods with another template do not count
// for them.
type templateKey struct {
	workload WorkloadID
	template string
}

// count counts an unhelpful restart, or resets the counter after a helpful one. A waiting workload keeps waiting.
func (s *State) count(g Grant) {
	key := templateKey{g.Workload, g.Template}
	switch {
	case g.Outcome == Unhelpful:
		s.unhelpful[key]++
	case g.Outcome == Helped && s.unhelpful[key] < maxUnhelpful:
		delete(s.unhelpful, key)
	}
}

// Unhelpful reports whether restarts of a workload's pods with that template were unhelpful, so that their grants must
// be kept.
func (s *State) Unhelpful(workload WorkloadID, template string) bool {
	return s.unhelpful[templateKey{workload, template}] > 0
}

// Waits reports whether pods of a workload with that template no longer restart, after too many unhelpful restarts.
func (s *State) Waits(workload WorkloadID, template string) bool {
	return s.unhelpful[templateKey{workload, template}] >= maxUnhelpful
}

// forgetTemplates drops templates without pods.
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

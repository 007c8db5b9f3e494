package restartbudget

import "testing"

func pods(n int) *Amount    { return &Amount{Value: n} }
func percent(n int) *Amount { return &Amount{Value: n, Percent: true} }

func TestMaxUnavailable(t *testing.T) {
	budget := func(name string, maxUnavailable, minAvailable *Amount) Budget {
		return Budget{Limit: Limit{name, maxUnavailable, minAvailable}}
	}
	tests := map[string]struct {
		replicas   int
		budgets    []Budget
		disruption []Limit
		want       int
		source     string
	}{
		"default":                             {10, nil, nil, 2, "the default, 25 %"},
		"default of few":                      {3, nil, nil, 1, "the default, 25 %"},
		"default of none":                     {0, nil, nil, 1, "the default, 25 %"},
		"pods":                                {10, []Budget{budget("a", pods(4), nil)}, nil, 4, "RestartBudget a"},
		"none":                                {10, []Budget{budget("a", pods(0), nil)}, nil, 0, "RestartBudget a"},
		"more than there are":                 {2, []Budget{budget("a", pods(4), nil)}, nil, 4, "RestartBudget a"},
		"share is rounded down":               {10, []Budget{budget("a", percent(39), nil)}, nil, 3, "RestartBudget a"},
		"share is at least one":               {3, []Budget{budget("a", percent(10), nil)}, nil, 1, "RestartBudget a"},
		"0 %":                                 {10, []Budget{budget("a", percent(0), nil)}, nil, 0, "RestartBudget a"},
		"100 %":                               {10, []Budget{budget("a", percent(100), nil)}, nil, 10, "RestartBudget a"},
		"minAvailable":                        {10, []Budget{budget("a", nil, pods(7))}, nil, 3, "RestartBudget a"},
		"minAvailable of more than there are": {2, []Budget{budget("a", nil, pods(7))}, nil, 0, "RestartBudget a"},
		"share of minAvailable is rounded up": {10, []Budget{budget("a", nil, percent(71))}, nil, 2, "RestartBudget a"},
		"minAvailable 100 %":                  {10, []Budget{budget("a", nil, percent(100))}, nil, 0, "RestartBudget a"},
		"minAvailable keeps its word":         {3, []Budget{budget("a", nil, percent(90))}, nil, 0, "RestartBudget a"},
		"both: maxUnavailable is stricter":    {10, []Budget{budget("a", pods(1), pods(5))}, nil, 1, "RestartBudget a"},
		"both: minAvailable is stricter":      {10, []Budget{budget("a", pods(9), pods(5))}, nil, 5, "RestartBudget a"},
		"the strictest budget":                {10, []Budget{budget("a", pods(5), nil), budget("b", pods(3), nil), budget("c", pods(4), nil)}, nil, 3, "RestartBudget b"},
		"budget instead of PDB":               {10, []Budget{budget("a", pods(5), nil)}, []Limit{{"p", pods(1), nil}}, 5, "RestartBudget a"},
		"budget without limit, and PDB":       {10, []Budget{budget("a", nil, nil)}, []Limit{{"p", pods(1), nil}}, 1, "PodDisruptionBudget p"},
		"budget without limit alone":          {10, []Budget{budget("a", nil, nil)}, nil, 2, "the default, 25 %"},
		"PDB: share is rounded up":            {10, nil, []Limit{{"p", percent(31), nil}}, 4, "PodDisruptionBudget p"},
		"PDB: minAvailable is rounded up":     {7, nil, []Limit{{"p", nil, percent(50)}}, 3, "PodDisruptionBudget p"},
		"PDB: none":                           {10, nil, []Limit{{"p", pods(0), nil}}, 0, "PodDisruptionBudget p"},
		"the strictest PDB":                   {10, nil, []Limit{{"p", pods(4), nil}, {"q", nil, pods(8)}}, 2, "PodDisruptionBudget q"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := &Workload{Replicas: tc.replicas, Budgets: tc.budgets, Disruption: tc.disruption}
			if got, want := w.maxUnavailable(deployment("web")), (allowance{tc.want, tc.source}); got != want {
				t.Errorf("maxUnavailable() = %v, want %v", got, want)
			}
		})
	}
}

func TestPodWithoutOwner(t *testing.T) {
	id := WorkloadID{"Pod", "shop", "web"}
	w := &Workload{Replicas: 1, Disruption: []Limit{{"p", nil, pods(2)}}}
	if got := w.maxUnavailable(id); got.pods != 1 {
		t.Errorf("maxUnavailable() = %v, want 1 whatever a PodDisruptionBudget for many pods says", got)
	}
	w.Budgets = []Budget{{Limit: Limit{Name: "a", MaxUnavailable: pods(0)}}}
	if got := w.maxUnavailable(id); got.pods != 0 {
		t.Errorf("maxUnavailable() = %v, want 0 as its RestartBudget says", got)
	}
}

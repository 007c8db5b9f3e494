package dpagent

import "testing"

func TestWorkersOf(t *testing.T) {
	tests := map[string]struct{ limit, processors, want int }{
		"no limit":                    {0, 8, 2},
		"no limit, one processor":     {0, 1, 1},
		"as many as the limit":        {1, 8, 1},
		"more than without a limit":   {5, 8, 5},
		"no more than the processors": {16, 8, 8},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := workersOf(tc.limit, tc.processors); got != tc.want {
				t.Errorf("workersOf(%d, %d) = %d, want %d", tc.limit, tc.processors, got, tc.want)
			}
		})
	}
}

package soak

import "testing"

func TestGrowth(t *testing.T) {
	const mib = 1 << 20
	flat := []usage{{17, 5 * mib, 24 * mib}, {16, 6 * mib, 34 * mib}, {17, 5.5 * mib, 24 * mib}, {17, 5.4 * mib, 25 * mib}, {17, 5 * mib, 40 * mib}, {17, 6 * mib, 31 * mib}}
	tests := map[string]struct {
		each usage // growth in each round
		want bool
	}{
		"noise alone":                {usage{}, false},
		"a few goroutines per round": {usage{goroutines: 5}, true},
		"a KiB per connecting proxy": {usage{heap: 200 << 10}, true},
		"memory outside of the heap": {usage{memory: 4 * mib}, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var all []usage
			for i, l := range flat {
				n := float64(i)
				all = append(all, usage{l.goroutines + n*tc.each.goroutines, l.heap + n*tc.each.heap, l.memory + n*tc.each.memory})
			}
			if err := growth(all); (err != nil) != tc.want {
				t.Errorf("growth() error = %v, want one: %v", err, tc.want)
			}
		})
	}
}

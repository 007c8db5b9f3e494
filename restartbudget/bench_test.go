package restartbudget

import (
	"fmt"
	"testing"
	"time"
)

// fiveThousand returns 500 workloads with ten pods each, whose containers all request a restart at once. guarded is the
// number of all guarded containers.
func fiveThousand(guarded int) Input {
	in := Input{Workloads: map[WorkloadID]*Workload{}, Guarded: guarded, Settings: Settings{PerMinute: 1_000, PerNodePerMinute: 50}}
	for i := range 500 {
		id := deployment(fmt.Sprintf("workload-%03d", i))
		w := &Workload{Replicas: 10, Pods: map[string]*Pod{}, Budgets: []Budget{{Limit: Limit{Name: "shop/all", MaxUnavailable: percent(20)}}}}
		for k := range 10 {
			uid := fmt.Sprintf("7f0c3d3e-5c1b-4c39-9d5e-%06d%06d", i, k)
			w.Pods[uid] = &Pod{
				Name: fmt.Sprintf("%s-7c5b9d6f4-%05d", id.Name, k), Node: fmt.Sprint("node-", (10*i+k)%100), Template: "7c5b9d6f4", Ready: true,
				Containers: []Container{{Name: "app", Image: "registry:5000/shop/app:1.2"}},
			}
			in.Requests = append(in.Requests, Request{ContainerKey: ContainerKey{uid, "app"}, Workload: id, Since: start})
		}
		in.Workloads[id] = w
	}
	return in
}

// BenchmarkDecide decides on 5,000 requests: for the first time, with 1,000 grants, with an open breaker, and when the
// requests are repeated.
func BenchmarkDecide(b *testing.B) {
	tests := map[string]struct{ guarded, granted int }{
		"grants":  {50_000, 1_000},
		"breaker": {5_000, 0},
	}
	for name, tc := range tests {
		in := fiveThousand(tc.guarded)
		decide := func(b *testing.B, s *State, now time.Time) {
			granted := 0
			for _, d := range s.Decide(now, in).Decisions {
				if d.Verdict == Granted {
					granted++
				}
			}
			if granted != tc.granted {
				b.Fatalf("%d granted, want %d", granted, tc.granted)
			}
		}
		b.Run(name+"/first", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				decide(b, New(), start)
			}
		})
		b.Run(name+"/again", func(b *testing.B) {
			b.ReportAllocs()
			s := New()
			decide(b, s, start)
			for b.Loop() {
				decide(b, s, start.Add(time.Second))
			}
		})
	}
}

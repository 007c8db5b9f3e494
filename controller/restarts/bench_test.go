package restarts

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
)

// 5,000 pods of 500 Deployments fail.
const (
	benchWorkloads = 500
	benchReplicas  = 10
)

// newBench returns an API server with all pods, and their names.
func newBench(b *testing.B) (a *api, pods []string) {
	b.Helper()
	a = newAPI(b, neverOpen)
	for i := range benchWorkloads {
		name := fmt.Sprint("web", i)
		a.deploy(name, benchReplicas)
		for j := range benchReplicas {
			pods = append(pods, fmt.Sprint(name, "-", j))
		}
	}
	return a, pods
}

// BenchmarkRestarts has the liveness probes of all pods fail within a second, and measures the leader during that and
// the next ten seconds.
func BenchmarkRestarts(b *testing.B) {
	var decided, first, heap, most float64
	for b.Loop() {
		b.StopTimer()
		a, pods := newBench(b)
		before := heapBytes()
		b.StartTimer()
		stop := a.lead(1)
		began := time.Now()
		each := time.NewTicker(time.Second / 100)
		for part := range slices.Chunk(pods, len(pods)/100) {
			a.fail(part...)
			<-each.C
		}
		each.Stop()
		failed := time.Now()
		for round := a.r.Round(); round == nil || len(round.Decisions) < len(pods); round = a.r.Round() {
			<-time.After(time.Millisecond)
		}
		decided += time.Since(failed).Seconds()
		<-time.After(time.Until(failed.Add(10 * time.Second)))
		heap += (heapBytes() - before) / float64(len(pods))
		sent := slices.DeleteFunc(a.sent(), func(r request) bool { return r.what == "GET restartgrants" })
		first += sent[0].at.Sub(began).Seconds()
		most = max(most, float64(mostInASecond(sent)))
		stop()
	}
	n := float64(b.N)
	b.ReportMetric(1000*decided/n, "ms-to-decisions")
	b.ReportMetric(1000*first/n, "ms-to-first-grant")
	b.ReportMetric(heap/n/1024, "KiB/pod")
	b.ReportMetric(most, "requests-in-a-second")
}

func heapBytes() float64 {
	runtime.GC()
	runtime.GC() // the first collection may have begun before the last garbage was created
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// mostInASecond returns the largest number of requests within any second.
func mostInASecond(all []request) (most int) {
	for i, j := 0, 0; j < len(all); j++ {
		for all[j].at.Sub(all[i].at) >= time.Second {
			i++
		}
		most = max(most, j-i+1)
	}
	return most
}

// BenchmarkRound measures one round of decisions while all pods request a restart, and all but a few grants wait to be
// written.
func BenchmarkRound(b *testing.B) {
	a, pods := newBench(b)
	a.fail(pods...)
	l := newLeader(a.r, 1)
	if err := l.read(b.Context()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		l.decide(b.Context(), time.Now())
	}
}

// BenchmarkRoundWithBudgets is BenchmarkRound with 1,000 RestartBudgets in four namespaces. In one case there is a
// budget for each workload, and as many for several workloads; in the other, the budgets are the slowest that a tenant
// can write: no two pods share labels, and no budget requires a label.
func BenchmarkRoundWithBudgets(b *testing.B) {
	for name, tc := range map[string]struct {
		selector func(workload int) *v1alpha1.PodSelector
		labels   func(pod string) map[string]string
	}{
		"as usual": {
			func(workload int) *v1alpha1.PodSelector {
				return &v1alpha1.PodSelector{MatchLabels: map[string]v1alpha1.LabelValue{"app": v1alpha1.LabelValue(fmt.Sprint("web", workload/4*4))}}
			},
			func(string) map[string]string { return nil },
		},
		"as slow as may be": {
			func(int) *v1alpha1.PodSelector {
				s := &v1alpha1.PodSelector{}
				for range v1alpha1.MaxSelectorExpressions {
					e := v1alpha1.LabelExpression{Key: "app", Operator: metav1.LabelSelectorOpNotIn}
					for i := range v1alpha1.MaxSelectorValues / v1alpha1.MaxSelectorExpressions {
						e.Values = append(e.Values, v1alpha1.LabelValue(fmt.Sprint("wob", i)))
					}
					s.MatchExpressions = append(s.MatchExpressions, e)
				}
				return s
			},
			func(pod string) map[string]string { return map[string]string{"pod": pod} },
		},
	} {
		b.Run(name, func(b *testing.B) {
			a, pods := newBench(b)
			spread(a, tc.labels)
			for i := range 1000 {
				o := budgetOf(fmt.Sprint("b", i), func(s *budgetSpec) {
					s.Selector, s.MaxUnavailable, s.PerMinute = tc.selector(i/2), new(intstr.FromInt32(2)), new(int32(1000))
				})
				o.Namespace = fmt.Sprint("shop", i/2%4)
				if err := a.r.cluster.budgets.Add(o); err != nil {
					b.Fatal(err)
				}
			}
			l := newLeader(a.r, 1)
			if err := l.read(b.Context()); err != nil {
				b.Fatal(err)
			}
			l.decide(b.Context(), time.Now())
			if n := len(l.round.Load().Decisions); n != len(pods) {
				b.Fatalf("%d decisions, want %d", n, len(pods))
			}
			for b.Loop() {
				l.decide(b.Context(), time.Now())
			}
		})
	}
}

// spread moves the pods into four namespaces, adds labels, and makes all of them fail.
func spread(a *api, labels func(pod string) map[string]string) {
	for key, p := range a.pods {
		moved := p.DeepCopy()
		workload := strings.TrimSuffix(moved.OwnerReferences[0].Name, "-5d4f")
		n, err := strconv.Atoi(strings.TrimPrefix(workload, "web"))
		if err != nil {
			a.t.Fatal(err)
		}
		moved.Namespace = fmt.Sprint("shop", n%4)
		maps.Copy(moved.Labels, labels(p.Name))
		if err := a.r.cluster.pods.Delete(p); err != nil {
			a.t.Fatal(err)
		}
		delete(a.pods, key)
		a.setPod(moved)
		a.liveness[keyOf(moved)] = agentv1.ReportedLiveness{Report: asking("app"), At: time.Now()}
	}
}

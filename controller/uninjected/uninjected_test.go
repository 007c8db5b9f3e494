package uninjected

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/controller/events"
)

func TestTelling(t *testing.T) {
	start := time.Unix(1e9, 0)
	one := telling{told: map[types.UID]time.Time{}}
	for _, tc := range []struct {
		at   time.Duration
		want bool
	}{{0, true}, {every, false}, {again - every, false}, {again, true}, {again + every, false}} {
		one.begin(start.Add(tc.at))
		if got := one.due("u", again); got != tc.want {
			t.Errorf("after %s reported: %t", tc.at, got)
		}
		if one.due("u", again) {
			t.Error("it is reported twice in one round")
		}
		one.end()
	}
	one.begin(start)
	if one.end(); len(one.told) != 0 {
		t.Errorf("%v remains after the pod was deleted", one.told)
	}
}

// A pod that should have a sidecar gets repeated events. A pod that injection left unchanged gets one, as does its
// owner.
func TestTell(t *testing.T) {
	for name, tc := range map[string]struct {
		absence Absence
		want    []string
	}{
		"missing":    {Absence{Missing: "it should"}, []string{"0s NotInjected: it should", "50m0s NotInjected: it should"}},
		"left alone": {Absence{Warning: "left alone"}, []string{"0s warned: left alone"}},
		"not asked":  {Absence{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			told := &telling{told: map[types.UID]time.Time{}}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
			for at := time.Duration(0); at <= again; at += again / 2 {
				o := Options{
					WhyNot: func(*corev1.Pod) Absence { return tc.absence },
					Record: func(e events.Event) { got = append(got, fmt.Sprintf("%s %s: %s", at, e.Reason, e.Note)) },
					Warn: func(_ context.Context, _ *corev1.Pod, w string) {
						got = append(got, fmt.Sprintf("%s warned: %s", at, w))
					},
				}
				told.begin(time.Unix(1e9, 0).Add(at))
				o.tell(t.Context(), told, pod)
				told.end()
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("reported %q, want %q", got, tc.want)
			}
		})
	}
}

// Pods that do not fit into one round are reported in the next ones.
func TestTellingOfMany(t *testing.T) {
	many := telling{told: map[types.UID]time.Time{}}
	for round := range 3 {
		many.begin(time.Unix(1e9, 0).Add(time.Duration(round) * every))
		told := 0
		for i := range perRound + 10 {
			if many.due(types.UID(strconv.Itoa(i)), again) {
				told++
			}
		}
		many.end()
		if want := []int{perRound, 10, 0}[round]; told != want {
			t.Errorf("round %d reports %d pods, want %d", round, told, want)
		}
	}
}

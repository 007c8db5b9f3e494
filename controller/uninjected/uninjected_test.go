package uninjected

import (
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func TestTelling(t *testing.T) {
	start := time.Unix(1e9, 0)
	one := telling{told: map[types.UID]time.Time{}}
	for _, tc := range []struct {
		at   time.Duration
		want bool
	}{{0, true}, {every, false}, {again - every, false}, {again, true}, {again + every, false}} {
		one.begin(start.Add(tc.at))
		if got := one.due("u"); got != tc.want {
			t.Errorf("after %s it is told of: %t", tc.at, got)
		}
		if one.due("u") {
			t.Error("it is told of twice in one round")
		}
		one.end()
	}
	one.begin(start)
	if one.end(); len(one.told) != 0 {
		t.Errorf("%v is remembered of a pod that is gone", one.told)
	}
}

// More than fit into one round are told of in the next ones.
func TestTellingOfMany(t *testing.T) {
	many := telling{told: map[types.UID]time.Time{}}
	for round := range 3 {
		many.begin(time.Unix(1e9, 0).Add(time.Duration(round) * every))
		told := 0
		for i := range perRound + 10 {
			if many.due(types.UID(strconv.Itoa(i))) {
				told++
			}
		}
		many.end()
		if want := []int{perRound, 10, 0}[round]; told != want {
			t.Errorf("round %d tells of %d pods, want %d", round, told, want)
		}
	}
}

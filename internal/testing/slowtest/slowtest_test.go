package slowtest

import "testing"

func TestRounds(t *testing.T) {
	for says, want := range map[string]int{"": 50, "all": 1000, "7": 7, "5000": 5000} {
		t.Setenv(SeedsVariable, says)
		if got := Rounds(1000, 50); got != want {
			t.Errorf("%s=%q: Rounds() = %d, want %d", SeedsVariable, says, got, want)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("Rounds() accepts an invalid number")
		}
	}()
	t.Setenv(SeedsVariable, "many")
	Rounds(1000, 50)
}

func TestAsksForMore(t *testing.T) {
	for says, want := range map[string]bool{"": false, "all": true, "100": true} {
		t.Setenv(SeedsVariable, says)
		if got := asksForMore(); got != want {
			t.Errorf("%s=%q: asksForMore() = %t, want %t", SeedsVariable, says, got, want)
		}
	}
}

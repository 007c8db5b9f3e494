package memorytest

import (
	"os"
	"testing"
)

var kept []byte

func TestOf(t *testing.T) {
	small, err := Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const size = 64 << 20
	kept = make([]byte, size)
	for i := range kept {
		kept[i] = 1
	}
	large, err := Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if large.RssAnon < size || large.RssAnon <= small.RssAnon || large.VmRSS < large.RssAnon {
		t.Errorf("Of() = %v with %d bytes more than %v", large, size, small)
	}
}

func TestOfNoProcess(t *testing.T) {
	if _, err := Of(1 << 30); err == nil {
		t.Error("Of() of no process is no error")
	}
}

func TestExceeds(t *testing.T) {
	limit := Memory{6, 20}
	for m, want := range map[Memory]bool{{6, 20}: false, {7, 20}: true, {6, 21}: true} {
		if got := m.Exceeds(limit); got != want {
			t.Errorf("%v exceeds %v: %v, want %v", m, limit, got, want)
		}
	}
	if got, want := (Memory{1, 5}).And(Memory{2, 4}), (Memory{3, 5}); got != want {
		t.Errorf("And() = %v, want %v", got, want)
	}
	if got, want := (Memory{1, 5}).Max(Memory{2, 4}), (Memory{2, 5}); got != want {
		t.Errorf("Max() = %v, want %v", got, want)
	}
}

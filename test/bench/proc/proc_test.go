package proc

import (
	"os"
	"testing"
)

var kept []byte

func TestOwnProcess(t *testing.T) {
	before, err := CPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	small, err := MemoryOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const size = 64 << 20
	kept = make([]byte, size)
	for i := range kept {
		kept[i] = 1
	}
	after, err := CPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	large, err := MemoryOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if after.Ran <= before.Ran {
		t.Errorf("CPU() = %v after work, %v before", after, before)
	}
	if large.RssAnon < size || large.RssAnon <= small.RssAnon || large.VmRSS < large.RssAnon {
		t.Errorf("MemoryOf() = %+v with %d bytes more than %+v", large, size, small)
	}
}

func TestNoProcess(t *testing.T) {
	if _, err := CPU(1 << 30); err == nil {
		t.Error("CPU() of no process is no error")
	}
	if _, err := MemoryOf(1 << 30); err == nil {
		t.Error("MemoryOf() of no process is no error")
	}
}

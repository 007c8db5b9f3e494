package proc

import (
	"os"
	"testing"
)

var sum int

func TestOwnProcess(t *testing.T) {
	before, err := CPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 64 << 20 {
		sum += i
	}
	after, err := CPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if after.Ran <= before.Ran {
		t.Errorf("CPU() = %v after work, %v before", after, before)
	}
}

func TestNoProcess(t *testing.T) {
	if _, err := CPU(1 << 30); err == nil {
		t.Error("CPU() of no process is no error")
	}
}

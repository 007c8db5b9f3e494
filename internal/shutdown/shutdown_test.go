package shutdown_test

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
	"testing"

	"github.com/sonde-mesh/sonde/internal/shutdown"
)

func TestSignals(t *testing.T) {
	// The test itself may run under nohup: a listener ends the ignoring of SIGHUP.
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, syscall.SIGHUP)
	defer signal.Stop(heard)
	want := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
	if got := shutdown.Signals(); !slices.Equal(got, want) {
		t.Errorf("Signals() = %v, want %v", got, want)
	}
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	if got := shutdown.Signals(); !slices.Equal(got, want[:2]) {
		t.Errorf("Signals() with SIGHUP ignored = %v, want %v", got, want[:2])
	}
}

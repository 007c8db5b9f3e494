package sockets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

const (
	// checkVariable makes this program check the TCP address in it.
	checkVariable = "SONDE_TEST_TCP_CHECK"
	// checkTimeout is the timeout of that check.
	checkTimeout = 2 * time.Second
)

// tcpCheck checks an address once, and returns the result in words.
func tcpCheck(address string) string {
	check, err := probe.NewTCPCheck(netip.MustParseAddrPort(address), checkTimeout, nil, nil)
	if err != nil {
		return err.Error()
	}
	err = check(context.Background())
	return fmt.Sprintf("late: %t, %v", errors.Is(err, probe.ErrLate), err)
}

// TestTimeoutOfAStoppedProcess checks that a timeout is a failure of the application, unless the agent was stopped
// meanwhile.
func TestTimeoutOfAStoppedProcess(t *testing.T) {
	for name, tc := range map[string]struct {
		stop bool
		want string // %s stands for the address
	}{
		"stopped": {true, "late: true, the agent was too busy to check: dial tcp %s: i/o timeout"},
		"running": {false, "late: false, dial tcp %s: i/o timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := full(t)
			want := fmt.Sprintf(tc.want, at)
			wait.Until(t, "the check", func() error { // repeated, because a busy machine may delay the process, too
				if got := checkInProcess(t, at, tc.stop); got != want {
					return fmt.Errorf("result = %q, want %q", got, want)
				}
				return nil
			})
		})
	}
}

// checkInProcess runs tcpCheck in another process. If stop is set, it stops the process for the duration of a
// check.
func checkInProcess(t *testing.T, at netip.AddrPort, stop bool) string {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), checkVariable+"="+at.String())
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	var err error
	go func() {
		defer close(ended)
		err = cmd.Wait()
	}()
	if stop {
		wait.For(t, "the check to connect, or its end", func() bool {
			select {
			case <-ended:
				return true
			default:
				return len(waiting(t, at)) > 0
			}
		})
		_ = cmd.Process.Signal(syscall.SIGSTOP) // fails if the process has ended
		time.Sleep(checkTimeout)
		_ = cmd.Process.Signal(syscall.SIGCONT)
	}
	<-ended
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String())
}

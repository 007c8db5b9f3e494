// Package strangers attacks a port as somebody may who has no certificate, from many addresses of this machine.
package strangers

import (
	"bufio"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
)

// Attack says who does what.
type Attack struct {
	Connections, Addresses int
	// Kind of what connections send: idle for nothing, http or http2 for all that a server of that may fall by.
	Kind string
	// Path of a probe, for http.
	Path string
}

// Start begins the attack on a port. It lasts until stop is called or the test ends, and opened returns how many connections there were. Attackers have
// processors of their own: here they get those that nobody else wants. setpriority(2) would only do that for one thread.
func (a Attack) Start(t testing.TB, target string) (opened func() int, stop func()) {
	t.Helper()
	program, err := harness.BuildInto(t.Context(), t.TempDir(), "test/strangers/attacker")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "nice", "-n", "19", program, "--target="+target, "--kind="+a.Kind, "--path="+a.Path,
		fmt.Sprint("--connections=", a.Connections), fmt.Sprint("--addresses=", a.Addresses))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = t.Output()
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			if made, err := strconv.ParseInt(lines.Text(), 10, 64); err == nil {
				n.Store(made)
			}
		}
	}()
	stop = func() {
		_ = input.Close() // it may have ended
		<-read
		if err := cmd.Wait(); err != nil && t.Context().Err() == nil {
			t.Errorf("attacker: %v", err)
		}
	}
	return func() int { return int(n.Load()) }, stop
}

// failureThreshold is the kubelet's default: so many probes in turn fail before it believes that.
const failureThreshold = 3

// InTime asks a probe in an attack, and returns what ask says of its verdict. A verdict that is late is none, whatever it is: it is asked again, as often
// as the kubelet does, since what is attacked has a machine of its own elsewhere, and here its strangers' work in the kernel is on the same processors.
func InTime(latest time.Duration, ask func() error) error {
	for try := 1; ; try++ {
		began := time.Now()
		err := ask()
		took := time.Since(began)
		if took < latest {
			return err
		}
		if try == failureThreshold {
			return errors.Join(fmt.Errorf("late for the %d. time in turn, after %s", try, took), err)
		}
	}
}

// Package strangers attacks a port as somebody may who has no certificate, from many addresses of this machine.
package strangers

import (
	"bufio"
	"fmt"
	"os/exec"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

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

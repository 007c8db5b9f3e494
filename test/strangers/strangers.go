// Package strangers attacks a port as a client without a certificate can, from many addresses of this machine.
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

// Attack describes an attack.
type Attack struct {
	Connections, Addresses int
	// Kind of the data that connections send: idle for none, http or http2 for data that is hard for such a
	// server.
	Kind string
	// Path of a probe, for http.
	Path string
}

// Start starts the attack on a port. The attack lasts until stop is called or the test ends; opened returns the
// number of connections. Real attackers have their own CPUs, so the process runs with nice 19; setpriority(2) would
// change only one of its threads.
func (a Attack) Start(t testing.TB, target string) (opened func() int, stop func()) {
	t.Helper()
	program, err := harness.BuildInto(t.Context(), t.TempDir(), "test/strangers/attacker")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "nice", "-n", "19", program,
		"--target="+target, "--kind="+a.Kind, "--path="+a.Path,
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

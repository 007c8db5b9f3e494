package kernel

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"testing/synctest"
)

func TestSockets(t *testing.T) {
	net.Listen("tcp", "")            // want `TestSockets uses net.Listen: use internal/testing/virtual, or move the test to test/real`
	net.ListenPacket("udp", "")      // want `TestSockets uses net.ListenPacket`
	net.Dial("tcp", "")              // want `uses net.Dial:`
	net.DialTimeout("tcp", "", 0)    // want `uses net.DialTimeout:`
	_ = new(net.ListenConfig)        // want `uses net.ListenConfig:`
	dialer := net.Dialer{}           // want `uses net.Dialer:`
	var another net.Dialer           // want `uses net.Dialer:`
	tls.Listen("tcp", "", nil)       // want `uses tls.Listen:`
	tls.Dial("tcp", "", nil)         // want `uses tls.Dial:`
	http.ListenAndServe("", nil)     // want `uses http.ListenAndServe:`
	httptest.NewServer(nil)          // want `uses httptest.NewServer:`
	httptest.NewTLSServer(nil)       // want `uses httptest.NewTLSServer:`
	httptest.NewUnstartedServer(nil) // want `uses httptest.NewUnstartedServer:`
	syscall.Socket(0, 0, 0)          // want `uses syscall.Socket:`
	listen := net.Listen             // want `a function in listen uses net.Listen:`
	_, _, _ = dialer, another, listen
}

func TestProcesses(t *testing.T) {
	exec.Command("true")                     // want `TestProcesses uses exec.Command:`
	exec.CommandContext(t.Context(), "true") // want `TestProcesses uses exec.CommandContext:`
	os.StartProcess("true", nil, nil)        // want `uses os.StartProcess:`
	syscall.ForkExec("true", nil, nil)       // want `uses syscall.ForkExec:`
}

func TestABubbleIsNoHelp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net.Listen("tcp", "") // want `TestABubbleIsNoHelp uses net.Listen:`
	})
}

func Helper() { exec.Command("true") } // want `Helper uses exec.Command:`

type machine struct{}

func (machine) start() { exec.Command("true") } // want `machine.start uses exec.Command:`

var variable = func() { net.Listen("tcp", "") } // want `a variable of the package uses net.Listen:`

func TestAllowed(t *testing.T) {
	var l net.Listener
	net.Pipe()
	httptest.NewRecorder()
	httptest.NewRequest("GET", "/", nil)
	net.ParseIP("::1")
	exec.LookPath("true")
	_, _ = l, exec.ErrNotFound
	both()
}

func BenchmarkSocket(b *testing.B) {
	net.Listen("tcp", "")
	measured()
	both()
}

func measured() { net.Listen("tcp", "") }

func both() { net.Listen("tcp", "") } // want `both uses net.Listen:`

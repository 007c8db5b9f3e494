// Package exechelper runs sonde-exec as a process, for tests.
package exechelper

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/execwire"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// Program returns the path of sonde-exec, which is built once.
var Program = sync.OnceValues(func() (string, error) {
	root, err := harness.Root()
	if err != nil {
		return "", err
	}
	return harness.BuildInto(context.Background(), filepath.Join(root, "bin", "exec"), "cmd/sonde-exec")
})

// Directory returns a directory whose path is short enough for a socket.
func Directory(t testing.TB) string {
	t.Helper()
	directory, err := os.MkdirTemp("", "exec") //nolint:usetesting // t.TempDir has the name of the test, a socket's path at most 107 bytes
	must.Do(t, err)
	t.Cleanup(func() { must.Do(t, os.RemoveAll(directory)) })
	return directory
}

// Serve runs the helper for this user until the test ends, or kill is called. The caller chooses command and timeout.
func Serve(t testing.TB, s execwire.Start, env ...string) (socket string, process *os.Process) {
	t.Helper()
	program, err := Program()
	must.Do(t, err)
	if s.Directory == "" {
		s.Directory = Directory(t)
	}
	s.Peer = uint(os.Getuid())
	socket = filepath.Join(s.Directory, execwire.Socket)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	must.Do(t, err)
	l.SetUnlinkOnClose(false)
	file, err := l.File()
	must.Do(t, err)
	lock, err := os.Create(filepath.Join(s.Directory, "lock"))
	must.Do(t, err)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, s.Args(execwire.ModeServe)...)
	cmd.Env, cmd.Stderr, cmd.ExtraFiles = append(os.Environ(), env...), os.Stderr, []*os.File{file, lock}
	must.Do(t, cmd.Start())
	for _, c := range []interface{ Close() error }{l, file, lock} {
		must.Do(t, c.Close())
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // an error means that it has ended
		_ = cmd.Wait()
	})
	return socket, cmd.Process
}

// Ask asks a helper as the agent does, and returns its answer.
func Ask(ctx context.Context, socket string) (execwire.Answer, error) {
	conn, err := probe.DialHelper(ctx, "unix", socket)
	if err != nil {
		return execwire.Answer{}, err
	}
	defer func() { _ = conn.Close() }()
	return execwire.Read(conn)
}

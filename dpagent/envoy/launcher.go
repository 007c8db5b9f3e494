package envoy

import (
	"context"
	"io"
	"syscall"
)

// Launcher runs Envoy binaries.
type Launcher interface {
	// Version asks the binary at path for its version.
	Version(ctx context.Context, path string) (string, error)
	// Launch starts an Envoy.
	Launch(c Command) (Process, error)
}

// Command is an Envoy to start.
type Command struct {
	// Path of the binary, and its arguments without the path.
	Path string
	Args []string
	// Dir is the working directory.
	Dir string
	// Forward reads the output until its end.
	Forward func(output io.Reader)
}

// Process is a running Envoy.
type Process interface {
	// PID is the process ID.
	PID() int
	// Activity returns the activity of the main thread, and false if it is unknown.
	Activity() (Activity, bool)
	// Signal sends a signal.
	Signal(s syscall.Signal) error
	// Ended is closed when the process has ended and Forward has returned.
	Ended() <-chan struct{}
	// Err waits for Ended and returns how the process ended. It never returns nil.
	Err() error
}

// ProcessLauncher runs binaries as child processes, which the kernel kills when this process dies.
type ProcessLauncher struct{}

var _ Launcher = ProcessLauncher{}

// Version implements Launcher.
func (ProcessLauncher) Version(ctx context.Context, path string) (string, error) {
	return versionOf(ctx, path)
}

// Launch implements Launcher.
func (ProcessLauncher) Launch(c Command) (Process, error) { return startChild(c) }

// Package worker is the worker's side of the guard: its listener, whose connections are messages of the guard.
package worker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// Options of a listener.
type Options struct {
	// Address to listen on: host:port, or the absolute path of a Unix socket, to which Envoy connects.
	Address string
	// Probes are the entries of the probe table.
	Probes []wire.Limit
	// MaxHead is the longest request without a body that the server accepts, in bytes. Default 8192.
	MaxHead int
}

const defaultMaxHead = 8 << 10

// role is what the guard says about this process. Programs that the worker starts inherit nothing of it.
var role = sync.OnceValue(func() wire.Role {
	r := wire.ParseRole(os.Getenv(wire.Env))
	if r.Worker {
		syscall.CloseOnExec(wire.FD)
		_ = os.Unsetenv(wire.Env) // cannot fail: the name is a good one
	}
	return r
})

// Guarded reports whether this process is the worker of a guard, and how many workers the guard has started, including this
// one. It must be called before this process starts others.
func Guarded() (starts int, ok bool) { return role().Starts, role().Worker }

// Listen opens the virtual port or socket; the caller must be ready to answer. In a worker, connections come from the guard, which
// owns them: it has read the request, forwards the answer, and then closes the connection. Without a guard it returns a
// plain listener. Call it once.
func Listen(ctx context.Context, o Options) (net.Listener, error) {
	if !role().Worker {
		return listen(ctx, o.Address)
	}
	if o.MaxHead == 0 {
		o.MaxHead = defaultMaxHead
	}
	file := os.NewFile(wire.FD, "guard")
	channel, err := net.FileConn(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("open the guard's socket: %w", err)
	}
	unix, ok := channel.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("file %d is not the guard's socket", wire.FD), channel.Close())
	}
	l, err := register(ctx, unix, o)
	if err != nil {
		return nil, errors.Join(err, unix.Close())
	}
	return l, nil
}

// fileListener is a listener whose socket can be given to the guard.
type fileListener interface {
	net.Listener
	File() (*os.File, error)
}

// listen opens a port, or a socket, of which an earlier guard may have left a file behind.
func listen(ctx context.Context, address string) (fileListener, error) {
	var config net.ListenConfig
	if !wire.IsSocket(address) {
		l, err := config.Listen(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return l.(*net.TCPListener), nil
	}
	if err := os.Remove(address); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := config.Listen(ctx, "unix", address)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// register sends the table to the guard, and the listening socket if the guard has none yet.
func register(ctx context.Context, channel *net.UnixConn, o Options) (*listener, error) {
	if err := sendTable(channel, o.Probes); err != nil {
		return nil, err
	}
	bound := role().Address
	var rights []byte
	if bound == "" {
		opened, err := listen(ctx, o.Address)
		if err != nil {
			return nil, err
		}
		defer func() { _ = opened.Close() }() // the guard has a duplicate, or registering has failed
		if socket, ok := opened.(*net.UnixListener); ok {
			socket.SetUnlinkOnClose(false) // it is the guard's
		}
		file, err := opened.File()
		if err != nil {
			return nil, fmt.Errorf("give the port to the guard: %w", err)
		}
		defer func() { _ = file.Close() }() // as above
		bound = opened.Addr().String()
		rights = syscall.UnixRights(int(file.Fd()))
	}
	address, err := resolve(bound)
	if err != nil {
		return nil, err
	}
	message := binary.LittleEndian.AppendUint32(wire.Header{Kind: wire.Listen}.Append(nil), uint32(o.MaxHead))
	message = append(message, bound...)
	if _, _, err := channel.WriteMsgUnix(message, rights, nil); err != nil {
		return nil, fmt.Errorf("tell the guard to listen: %w", err)
	}
	send := func(message []byte) error {
		_, err := channel.Write(message)
		return err
	}
	channelToGuard.Store(&send)
	return newListener(channel, address), nil
}

func resolve(address string) (net.Addr, error) {
	if wire.IsSocket(address) {
		return net.ResolveUnixAddr("unix", address)
	}
	return net.ResolveTCPAddr("tcp", address)
}

func sendTable(channel *net.UnixConn, probes []wire.Limit) error {
	message := wire.Header{Kind: wire.Table}.Append(nil)
	flush := func() error {
		if _, err := channel.Write(message); err != nil {
			return fmt.Errorf("tell the guard the probes: %w", err)
		}
		message = message[:wire.HeaderSize]
		return nil
	}
	for _, p := range probes {
		if len(p.ID) > wire.MaxID {
			return fmt.Errorf("probe id of %d bytes: at most %d are allowed", len(p.ID), wire.MaxID)
		}
		message = wire.AppendLimit(message, p)
		if len(message) > wire.MaxMessage-2*wire.MaxID {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if len(message) == wire.HeaderSize {
		return nil
	}
	return flush()
}

// Package guard is the worker's side of a guard: the small parent process that owns the virtual port, so that an agent
// which has died does not look like an application that fails. Package parent is the other side.
package guard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// Probe is what the guard has to know of a probe or hook, to answer in place of a worker.
type Probe struct {
	// ID that requests carry in the header Sonde-Probe, "" if they carry none.
	ID string
	// Timeout is the user's. Half a second later the guard answers that nobody knows.
	Timeout time.Duration
	// Hook is true for a lifecycle hook: it has no timeout, and is not repeated.
	Hook bool
}

// Options of a listener.
type Options struct {
	// Address is host:port.
	Address string
	// Probes are those of the table.
	Probes []Probe
	// MaxHead is the longest request without a body, in bytes, that the server would take. Default 8192.
	MaxHead int
}

const defaultMaxHead = 8 << 10

// Guarded says whether a guard runs above this process, and how many workers it has started, this one included.
func Guarded() (starts int, ok bool) {
	part := wire.ParseRole(os.Getenv(wire.Env))
	return part.Starts, part.Worker
}

// Listen opens the port when the caller can answer. In a worker, connections come from the guard: it has read the request, owns
// the connection, and closes it after one answer; all that a worker sends in Write is for whoever asked, and Close ends it.
// Without a guard it is a plain listener. It is to be called once.
func Listen(ctx context.Context, o Options) (net.Listener, error) {
	part := wire.ParseRole(os.Getenv(wire.Env))
	if !part.Worker {
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
	l, err := register(ctx, unix, part, o)
	if err != nil {
		return nil, errors.Join(err, unix.Close())
	}
	return l, nil
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	var config net.ListenConfig
	return config.Listen(ctx, "tcp", address)
}

// register tells the guard the table, and gives it the socket if it has none yet.
func register(ctx context.Context, channel *net.UnixConn, part wire.Role, o Options) (*listener, error) {
	if err := sendTable(channel, o.Probes); err != nil {
		return nil, err
	}
	var rights []byte
	if part.Address == "" {
		opened, err := listen(ctx, o.Address)
		if err != nil {
			return nil, err
		}
		defer func() { _ = opened.Close() }() // the guard has it now, or nobody should
		file, err := opened.(*net.TCPListener).File()
		if err != nil {
			return nil, fmt.Errorf("give the port to the guard: %w", err)
		}
		defer func() { _ = file.Close() }() // as above
		part.Address = opened.Addr().String()
		rights = syscall.UnixRights(int(file.Fd()))
	}
	address, err := net.ResolveTCPAddr("tcp", part.Address)
	if err != nil {
		return nil, err
	}
	message := binary.LittleEndian.AppendUint32(wire.Header{Kind: wire.Listen}.Append(nil), uint32(o.MaxHead))
	message = append(message, part.Address...)
	if _, _, err := channel.WriteMsgUnix(message, rights, nil); err != nil {
		return nil, fmt.Errorf("tell the guard to listen: %w", err)
	}
	return newListener(channel, address), nil
}

func sendTable(channel *net.UnixConn, probes []Probe) error {
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
		message = wire.AppendProbe(message, wire.Probe(p))
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

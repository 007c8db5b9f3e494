// Package worker is the worker's side of the guard. Its listeners return connections that the guard sends as messages.
package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// Options of listeners.
type Options struct {
	// Ports to listen on, at most wire.MaxPorts.
	Ports []wire.Port
	// Probes are the entries of the probe table.
	Probes []wire.Limit
	// Warns makes the guard answer liveness probes with a warning instead of Errored, until SetWarns changes it.
	Warns bool
}

// role is this process's role, set by the guard. Programs that the worker starts do not inherit it.
var role = sync.OnceValue(func() wire.Role {
	r := wire.ParseRole(os.Getenv(wire.Env))
	if r.Worker {
		syscall.CloseOnExec(wire.FD)
		_ = os.Unsetenv(wire.Env) // cannot fail: the name is valid
	}
	return r
})

// Guarded reports whether this process is the worker of a guard, and how many workers the guard has started, including
// this one. It must be called before this process starts others.
func Guarded() (starts int, ok bool) { return role().Starts, role().Worker }

// Listen opens the ports and returns their listeners in the same order; the caller must be ready to answer. In a worker
// the guard owns the ports: it reads the requests, forwards the answers, and then closes the connections. Without a
// guard, Listen returns plain listeners. Call it once.
func Listen(ctx context.Context, o Options) ([]net.Listener, error) {
	if len(o.Ports) > wire.MaxPorts {
		return nil, fmt.Errorf("%d ports: at most %d are allowed", len(o.Ports), wire.MaxPorts)
	}
	if !role().Worker {
		opened, err := listen(ctx, o.Ports)
		all := make([]net.Listener, len(opened))
		for i, l := range opened {
			all[i] = l
		}
		return all, err
	}
	file := os.NewFile(wire.FD, "guard")
	connected, err := net.FileConn(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("open the socket to the guard: %w", err)
	}
	unix, ok := connected.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("file descriptor %d is not the socket to the guard", wire.FD), connected.Close())
	}
	all, err := register(ctx, unix, o)
	if err != nil {
		return nil, errors.Join(err, unix.Close())
	}
	return all, nil
}

// SetWarns replaces Options.Warns, also for later workers. It does nothing without a guard, or before Listen.
func SetWarns(warns bool) {
	if send := channelToGuard.Load(); send != nil {
		_ = (*send)(holdMessage(warns)) // fails only if the guard has ended, which ends this process
	}
}

func holdMessage(warns bool) []byte {
	h := wire.Header{Kind: wire.Hold}
	if warns {
		h.ID = 1
	}
	return h.Append(nil)
}

// listen opens all ports, or none.
func listen(ctx context.Context, ports []wire.Port) (all []*net.TCPListener, err error) {
	var config net.ListenConfig
	for _, p := range ports {
		l, err := config.Listen(ctx, "tcp", p.Address)
		if err != nil {
			return nil, errors.Join(err, closeAll(all))
		}
		all = append(all, l.(*net.TCPListener))
	}
	return all, nil
}

func closeAll(all []*net.TCPListener) error {
	var errs []error
	for _, l := range all {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// register sends the table to the guard, and the listening sockets if the guard does not have them yet.
func register(ctx context.Context, unix *net.UnixConn, o Options) ([]net.Listener, error) {
	if err := sendTable(unix, o.Probes); err != nil {
		return nil, err
	}
	if _, err := unix.Write(holdMessage(o.Warns)); err != nil {
		return nil, fmt.Errorf("send the hold mode to the guard: %w", err)
	}
	addresses := role().Addresses
	if len(addresses) == 0 {
		var err error
		if addresses, err = hand(ctx, unix, o.Ports); err != nil {
			return nil, err
		}
	}
	c := newChannel(unix)
	all := make([]net.Listener, len(addresses))
	for i, bound := range addresses {
		address, err := net.ResolveTCPAddr("tcp", bound)
		if err != nil {
			return nil, err
		}
		all[i] = c.add(address, o.Ports[i].GRPC)
	}
	send := func(message []byte) error {
		_, err := unix.Write(message)
		return err
	}
	if err := send(wire.Header{Kind: wire.Ready}.Append(nil)); err != nil {
		return nil, fmt.Errorf("send ready to the guard: %w", err)
	}
	channelToGuard.Store(&send)
	c.start()
	return all, nil
}

// hand opens the ports and passes them to the guard. It returns their addresses.
func hand(ctx context.Context, unix *net.UnixConn, ports []wire.Port) (addresses []string, err error) {
	opened, err := listen(ctx, ports)
	if err != nil {
		return nil, err
	}
	defer func() { _ = closeAll(opened) }() // the guard has duplicates, or hand has failed
	for i, p := range ports {
		p.Address = opened[i].Addr().String()
		if err := handOne(unix, opened[i], p); err != nil {
			return nil, fmt.Errorf("pass port %s to the guard: %w", p.Address, err)
		}
		addresses = append(addresses, p.Address)
	}
	return addresses, nil
}

func handOne(unix *net.UnixConn, l *net.TCPListener, p wire.Port) error {
	file, err := l.File()
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // the guard gets a duplicate
	_, _, err = unix.WriteMsgUnix(wire.AppendPort(nil, p), syscall.UnixRights(int(file.Fd())), nil)
	return err
}

func sendTable(unix *net.UnixConn, probes []wire.Limit) error {
	message := wire.Header{Kind: wire.Table}.Append(nil)
	flush := func() error {
		if _, err := unix.Write(message); err != nil {
			return fmt.Errorf("send the probes to the guard: %w", err)
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

package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/sonde-mesh/sonde/cni/wire"
)

// maxRequests bounds parallel requests; others wait. A kubelet starts that many pods at once only after a reboot.
const maxRequests = 64

// listen listens on a Unix socket that only root can use. It atomically replaces a previous daemon's socket, so that
// other users can never connect.
func listen(path string) (*net.UnixListener, error) {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the next daemon may have replaced the socket
	if err = os.Chmod(fresh, 0o600); err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// serve answers the plugin until ctx ends. Running requests then have a short time to end.
func (d *Daemon) serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = d.listener.Close() }) // makes Accept fail, which ends the loop
	defer stop()
	var answering sync.WaitGroup
	defer answering.Wait()
	places := make(chan struct{}, maxRequests)
	for {
		places <- struct{}{}
		conn, err := d.listener.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("accept requests of the plugin: %w", err)
		}
		answering.Go(func() {
			defer func() { <-places }()
			if err := wire.Serve(ctx, conn, d.redirector.Handle); err != nil {
				d.o.Logger.Warn("failed to answer the plugin", "err", err)
			}
		})
	}
}

package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// client makes probes as the kubelet does, on a new connection for each probe, but with little work of
// its own.
type client struct {
	target string // host:port of the subject, or of the application if direct
	direct bool
	kind   string
	probes []mesh.Probe
	due    []atomic.Int64 // earliest time of an entry's next probe
}

// newClient returns a client for a range of entries of a probe table.
func newClient(s *subject, a app, kind string, first, entries int) *client {
	c := &client{target: s.address, kind: kind, due: make([]atomic.Int64, entries)}
	if s.address == "" {
		c.target, c.direct = at(a[kind]), true
	}
	for i := range entries {
		c.probes = append(c.probes, a.entry(first+i, kind))
	}
	return c
}

// pause between two probes of one entry: slightly more than 100 ms, the shortest interval that the handler
// allows.
const pause = 105 * time.Millisecond

// run probes all entries in turn, several at the same time. It returns the sorted durations of the probes. All must
// succeed.
func (c *client) run(ctx context.Context, probes, atOnce int) ([]time.Duration, error) {
	var next atomic.Int64
	times := make([]time.Duration, probes)
	group, ctx := errgroup.WithContext(ctx)
	for range atOnce {
		group.Go(func() error {
			buffer := make([]byte, 4<<10)
			for {
				i := int(next.Add(1)) - 1
				if i >= probes {
					return nil
				}
				entry := i % len(c.probes)
				<-time.After(time.Until(time.Unix(0, c.due[entry].Load())))
				begun := time.Now()
				if err := c.ask(ctx, c.probes[entry], buffer); err != nil {
					return fmt.Errorf("%s probe of %s: %w", c.kind, c.target, err)
				}
				times[i] = time.Since(begun)
				c.due[entry].Store(time.Now().Add(pause).UnixNano())
			}
		})
	}
	err := group.Wait()
	slices.Sort(times)
	return times, err
}

const timeout = 10 * time.Second

func (c *client) ask(ctx context.Context, p mesh.Probe, buffer []byte) error {
	if c.direct && c.kind == kindGRPC {
		return checkGRPC(ctx, c.target)
	}
	d := net.Dialer{KeepAlive: -1, Timeout: timeout}
	conn, err := d.DialContext(ctx, "tcp", c.target)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // everything has been read
	if c.direct && c.kind == kindTCP {
		return conn.(*net.TCPConn).SetLinger(0)
	}
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	path := p.VirtualPath()
	if c.direct {
		path = p.HTTPGet.Target()
	}
	const head = "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: kube-probe/1.36\r\nAccept: */*\r\nConnection: close\r\nSonde-Probe: %s\r\n\r\n"
	if _, err := fmt.Fprintf(conn, head, path, c.target, p.ID); err != nil {
		return err
	}
	return readStatus(conn, buffer)
}

// readStatus reads a response to its end. It returns an error for any status other than 200.
func readStatus(conn net.Conn, buffer []byte) error {
	n, err := io.ReadFull(conn, buffer)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	if !bytes.HasPrefix(buffer[:n], []byte("HTTP/1.1 200")) {
		return fmt.Errorf("the answer is %.200q", buffer[:n])
	}
	return nil
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// order tells the client what to do.
type order struct {
	// Target is the subject's host:port, or the application's if Direct.
	Target string
	Direct bool
	Kind   string
	Port   int // of the application
	// Probes to make, AtOnce of them at the same time, of the entries First to First+Entries-1 in turn.
	Probes, AtOnce, First, Entries int
}

// figures are the result of an order. Times are in microseconds.
type figures struct {
	P50, P99 float64
	PerSec   float64
	Failed   int
	Err      string // error of one probe that failed
}

// serveClient asks as a kubelet does, on a new connection for each probe, but with little work of its own.
func serveClient(ctx context.Context) error {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	due := map[string][]atomic.Int64{} // by target, for each entry
	for {
		var o order
		if err := in.Decode(&o); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		key := o.Target
		if len(due[key]) < o.First+o.Entries {
			due[key] = append(due[key], make([]atomic.Int64, o.First+o.Entries-len(due[key]))...)
		}
		if err := out.Encode(o.run(ctx, due[key])); err != nil {
			return err
		}
	}
}

// pause between two probes of one entry: a bit more than 100 ms, the shortest interval that the handler allows.
const pause = 105 * time.Millisecond

func (o order) run(ctx context.Context, due []atomic.Int64) figures {
	var next, failed atomic.Int64
	var failure atomic.Pointer[error]
	times := make([]time.Duration, o.Probes)
	begin := time.Now()
	var running sync.WaitGroup
	for range o.AtOnce {
		running.Go(func() {
			for buffer := make([]byte, 4<<10); ; {
				i := int(next.Add(1)) - 1
				if i >= o.Probes || ctx.Err() != nil {
					return
				}
				entry := o.First + i%o.Entries
				now := time.Now()
				if wait := time.Unix(0, due[entry].Load()).Sub(now); wait > 0 {
					<-time.After(wait)
					now = time.Now()
				}
				if err := o.ask(ctx, entry, buffer); err != nil {
					failed.Add(1)
					failure.Store(&err)
				}
				times[i] = time.Since(now)
				due[entry].Store(time.Now().Add(pause).UnixNano())
			}
		})
	}
	running.Wait()
	took := time.Since(begin)
	slices.Sort(times)
	f := figures{
		P50: micros(times[len(times)/2]), P99: micros(times[len(times)*99/100]),
		PerSec: float64(o.Probes) / took.Seconds(), Failed: int(failed.Load()),
	}
	if err := failure.Load(); err != nil {
		f.Err = (*err).Error()
	}
	return f
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

func (o order) ask(ctx context.Context, entry int, buffer []byte) error {
	if o.Direct && o.Kind == kindGRPC {
		return checkGRPC(ctx, o.Target)
	}
	d := net.Dialer{KeepAlive: -1, Timeout: 10 * time.Second}
	c, err := d.DialContext(ctx, "tcp", o.Target)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // everything has been read
	if o.Direct && o.Kind == kindTCP {
		return c.(*net.TCPConn).SetLinger(0)
	}
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	p := entryOf(entry, o.Kind, o.Port)
	path := p.VirtualPath()
	if o.Direct {
		path = p.HTTPGet.Target()
	}
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: kube-probe/1.36\r\nAccept: */*\r\nConnection: close\r\nSonde-Probe: %s\r\n\r\n", path, o.Target, p.ID); err != nil {
		return err
	}
	return readStatus(c, buffer)
}

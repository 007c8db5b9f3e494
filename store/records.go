package store

import (
	"bytes"
	"container/list"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// recordPatience bounds how long Write and Remove wait for the disk.
	recordPatience = 500 * time.Millisecond
	// retryPause is the delay before a failed write is retried.
	retryPause = time.Second
	// closePatience bounds how long Close waits for the disk.
	closePatience = 2 * time.Second
	// probeEvery is how recent a write must be for Check to rely on it.
	probeEvery = 10 * time.Second
	// probeRecord is the file that Check writes if nothing else is written.
	probeRecord = "checked-at"
)

// Records are files of a State about proxies, such as which of them are draining. A write that fails stays in memory
// and is retried, so that a mesh is served even if the disk is full, read-only or stuck. If the control plane ends
// meanwhile, the write is lost. Methods may be called concurrently.
type Records struct {
	state *State
	log   *slog.Logger

	mu      sync.Mutex
	queue   *list.List // of *record not on disk, in the order of attempts
	pending map[string]*list.Element
	refused int  // how many of them have failed
	writing bool // whether a goroutine is writing them
	closed  bool
	lost    int           // how many have failed since
	ending  chan struct{} // closed by Close
	ended   chan struct{} // closed once the writer has stopped
}

// record is a file to be written or removed.
type record struct {
	name   string
	write  func() error
	since  time.Time       // when it was first queued
	err    error           // why the last attempt failed
	tried  <-chan struct{} // closed by settle after the first attempt
	settle func()
}

// NewRecords returns the records of a state directory. Close them before the directory.
func NewRecords(state *State, log *slog.Logger, registerer prometheus.Registerer) (*Records, error) {
	r := &Records{
		state: state, log: log, queue: list.New(), pending: map[string]*list.Element{},
		ending: make(chan struct{}), ended: make(chan struct{}),
	}
	err := registerer.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sonde_state_unwritten_files",
		Help: "Files of the state directory that are not on disk yet. They are lost if the control plane stops.",
	}, func() float64 { return float64(r.unwritten()) }))
	if err != nil {
		return nil, fmt.Errorf("register metric of the state directory: %w", err)
	}
	return r, nil
}

// Read is State.Read. Read records before writing any.
func (r *Records) Read(name string) ([]byte, error) { return r.state.Read(name) }

// List is State.List.
func (r *Records) List(directory string) ([]string, error) { return r.state.List(directory) }

// Write replaces a file. If it returns nil, the file is on disk, or the disk is slow or fails and the write is retried.
// The error is fs.ErrInvalid for an invalid name, and fs.ErrClosed after Close.
func (r *Records) Write(name string, data []byte) error {
	return r.keep(name, func() error { return r.state.Write(name, data) })
}

// Remove removes a file. Its result is as for Write.
func (r *Records) Remove(name string) error {
	return r.keep(name, func() error { return r.state.Remove(name) })
}

// later is like Write for a valid name, but does not wait. It skips a file that already has the content.
func (r *Records) later(name string, data []byte) {
	_, _, _ = r.add(name, func() error { // dropped after Close
		if now, err := r.state.Read(name); err == nil && bytes.Equal(now, data) {
			return nil
		}
		return r.state.Write(name, data)
	})
}

// removeLater is like Remove, but does not wait.
func (r *Records) removeLater(name string) {
	_, _, _ = r.add(name, func() error { return r.state.Remove(name) }) // as above
}

func (r *Records) keep(name string, write func() error) error {
	if err := checkName(name); err != nil {
		return err
	}
	tried, wait, err := r.add(name, write)
	if err != nil || !wait {
		return err
	}
	patience := time.NewTimer(recordPatience)
	defer patience.Stop()
	select {
	case <-tried:
	case <-patience.C:
	}
	return nil
}

// add queues a record. wait reports whether it is useful to wait for its first attempt: it is not if another record has
// waited longer.
func (r *Records) add(name string, write func() error) (settled <-chan struct{}, wait bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, false, fmt.Errorf("write state %s: %w", name, fs.ErrClosed)
	}
	oldest := r.queue.Front()
	wait = r.refused == 0 && (oldest == nil || time.Since(oldest.Value.(*record).since) < recordPatience)
	tried := make(chan struct{})
	now := &record{name: name, write: write, since: time.Now(), tried: tried,
		settle: sync.OnceFunc(func() { close(tried) })}
	if e := r.pending[name]; e != nil { // callers waiting for the previous write wait for this one
		before := e.Value.(*record)
		now.since, now.err, now.tried, now.settle = before.since, before.err, before.tried, before.settle
		e.Value = now
	} else {
		r.pending[name] = r.queue.PushBack(now)
	}
	if !r.writing {
		r.writing = true
		go r.writeAll()
	}
	return now.tried, wait, nil
}

// writeAll writes queued records. After Close it writes each one last time.
func (r *Records) writeAll() {
	for next := r.next(); next != nil; next = r.next() {
		err := next.write()
		r.wrote(next, err)
		if err != nil {
			select {
			case <-r.ending:
			case <-time.After(retryPause):
			}
		}
	}
}

// next returns the next record to write, nil when the writer should stop.
func (r *Records) next() *record {
	r.mu.Lock()
	defer r.mu.Unlock()
	if front := r.queue.Front(); front != nil {
		return front.Value.(*record)
	}
	r.writing = false
	if r.closed {
		close(r.ended)
	}
	return nil
}

// wrote records the result of an attempt. A record that failed goes last, so that it does not delay others.
func (r *Records) wrote(last *record, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.pending[last.name]
	now := e.Value.(*record) // queued again meanwhile, or the same
	if (now.err != nil) != (err != nil) {
		r.count(err)
	}
	if err != nil || now == last {
		now.settle()
	}
	now.err = err
	switch {
	case err == nil && now == last:
		r.remove(e)
	case err != nil && r.closed:
		r.lost++
		r.remove(e)
	case err != nil:
		r.queue.MoveToBack(e)
	}
}

// count updates the number of failed records, and logs when failures begin and end.
func (r *Records) count(err error) {
	if err == nil {
		if r.refused--; r.refused == 0 {
			r.log.Info("state directory is writable again")
		}
		return
	}
	if r.refused++; r.refused == 1 {
		r.log.Error("state is not on disk, retrying; it is served from memory meanwhile", "err", err)
	}
}

func (r *Records) remove(e *list.Element) {
	r.queue.Remove(e)
	delete(r.pending, e.Value.(*record).name)
}

// Check returns why the directory cannot be written, nil if it can. It writes a file if there was no recent write.
func (r *Records) Check() error {
	if err := r.state.Check(); err != nil {
		return err
	}
	if r.unwritten() == 0 && time.Since(r.state.lastWrite()) > probeEvery {
		if err := r.Write(probeRecord, []byte(time.Now().UTC().Format(time.RFC3339)+"\n")); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refused == 0 {
		return nil
	}
	var since time.Time
	var err error
	for _, e := range r.pending {
		if one := e.Value.(*record); one.err != nil && (err == nil || one.since.Before(since)) {
			since, err = one.since, one.err
		}
	}
	return fmt.Errorf("%d files are not on disk, the first since %s; they are kept in memory: %w",
		r.queue.Len(), since.UTC().Format(time.RFC3339), err)
}

func (r *Records) unwritten() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queue.Len()
}

// Close writes the remaining records, for at most closePatience. The error says how many files are lost. Call it once.
func (r *Records) Close() error {
	r.mu.Lock()
	r.closed = true
	close(r.ending)
	if !r.writing {
		close(r.ended)
	}
	r.mu.Unlock()
	patience := time.NewTimer(closePatience)
	defer patience.Stop()
	select {
	case <-r.ended:
	case <-patience.C:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if lost := r.lost + r.queue.Len(); lost > 0 {
		return fmt.Errorf("close state directory: %d files could not be written and are lost", lost)
	}
	return nil
}

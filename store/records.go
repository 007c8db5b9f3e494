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
	// recordPatience is how long Write and Remove wait for the disk.
	recordPatience = 500 * time.Millisecond
	// retryPause is how soon the disk is asked again that has refused a record.
	retryPause = time.Second
	// closePatience is how long Close waits for records that are not on disk yet.
	closePatience = 2 * time.Second
	// probeEvery is how old the write may be that Check goes by.
	probeEvery = 10 * time.Second
	// probeRecord is what Check writes if nothing else is written.
	probeRecord = "checked-at"
)

// Records are files of a State with what is known of proxies, such as which of them drain. What the disk does not take stays in memory and is
// tried again, so that a mesh is served on whose control plane has a disk that is full, read-only or stuck: only what is not on disk
// when the control plane ends is lost. Methods may be called concurrently.
type Records struct {
	state *State
	log   *slog.Logger

	mu      sync.Mutex
	queue   *list.List // of *record, what is not on disk, in the order in which it is tried
	pending map[string]*list.Element
	refused int  // how many of them the disk has refused
	writing bool // whether there is a goroutine that writes them
	closed  bool
	lost    int           // how many the disk has refused since
	ending  chan struct{} // closed by Close
	ended   chan struct{} // closed once nothing writes any more
}

// record is a file that is to be written, or removed.
type record struct {
	name   string
	write  func() error
	since  time.Time       // when it was to be written first
	err    error           // why the disk has refused it
	tried  <-chan struct{} // closed by settle once it is on disk, or was refused
	settle func()
}

// NewRecords returns the records of a state directory. They have to be closed before it is.
func NewRecords(state *State, log *slog.Logger, registerer prometheus.Registerer) (*Records, error) {
	r := &Records{
		state: state, log: log, queue: list.New(), pending: map[string]*list.Element{},
		ending: make(chan struct{}), ended: make(chan struct{}),
	}
	err := registerer.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sonde_state_unwritten_files",
		Help: "Files of the state directory that are not on disk yet. They are lost if the control plane ends.",
	}, func() float64 { return float64(r.unwritten()) }))
	if err != nil {
		return nil, fmt.Errorf("register metric of the state directory: %w", err)
	}
	return r, nil
}

// Read is State.Read. Records are read before they are written.
func (r *Records) Read(name string) ([]byte, error) { return r.state.Read(name) }

// List is State.List.
func (r *Records) List(directory string) ([]string, error) { return r.state.List(directory) }

// Write replaces a file. It is on disk when Write returns, unless the disk is slow or takes nothing: then it will be. The error
// is fs.ErrInvalid for a wrong name, and fs.ErrClosed.
func (r *Records) Write(name string, data []byte) error {
	return r.keep(name, func() error { return r.state.Write(name, data) })
}

// Remove removes a file, as Write writes it.
func (r *Records) Remove(name string) error {
	return r.keep(name, func() error { return r.state.Remove(name) })
}

// later is Write for a name that is known to be good, and does not wait. A file that has the content already is not written.
func (r *Records) later(name string, data []byte) {
	_, _, _ = r.add(name, func() error { // after Close it is not kept
		if now, err := r.state.Read(name); err == nil && bytes.Equal(now, data) {
			return nil
		}
		return r.state.Write(name, data)
	})
}

// removeLater is Remove as later is Write.
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

// add has a record written. wait says that it is worth to wait until it was tried: there is none that waits for longer.
func (r *Records) add(name string, write func() error) (settled <-chan struct{}, wait bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, false, fmt.Errorf("write state %s: %w", name, fs.ErrClosed)
	}
	oldest := r.queue.Front()
	wait = r.refused == 0 && (oldest == nil || time.Since(oldest.Value.(*record).since) < recordPatience)
	tried := make(chan struct{})
	now := &record{name: name, write: write, since: time.Now(), tried: tried, settle: sync.OnceFunc(func() { close(tried) })}
	if e := r.pending[name]; e != nil { // callers that wait for the one before wait for this one
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

// writeAll writes what there is to write. Once the records are closed it tries each that is left for a last time.
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

// next returns the record that is tried next. Without one the caller writes no more.
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

// wrote says what became of a record. One that the disk has refused comes last, so that a bad file keeps no other one back.
func (r *Records) wrote(last *record, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.pending[last.name]
	now := e.Value.(*record) // what was written meanwhile, or the same
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

// count counts a record that the disk refuses now, or does not any more, and says when that begins and ends.
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

// Check returns why nothing can be kept in the directory, nil if it can. It writes a file if nothing else was written lately.
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
	return fmt.Errorf("%d files are not on disk, the first since %s; they are kept in memory: %w", r.queue.Len(), since.UTC().Format(time.RFC3339), err)
}

func (r *Records) unwritten() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queue.Len()
}

// Close writes what is left, for at most closePatience. The error says how many files are lost. It may be called once.
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
		return fmt.Errorf("close state directory: %d files are lost that the disk did not take", lost)
	}
	return nil
}

package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// tape is a disk that writes when the test allows it. Its log has what was written.
type tape struct {
	mu    sync.Mutex
	fail  error
	stuck chan struct{} // closed to end a wait of the disk
	log   []string
}

func (d *tape) write(text string) func() error {
	return func() error {
		d.mu.Lock()
		stuck := d.stuck
		d.mu.Unlock()
		if stuck != nil {
			<-stuck
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.fail != nil {
			return d.fail
		}
		d.log = append(d.log, text)
		return nil
	}
}

func (d *tape) set(fail error, stuck chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail, d.stuck = fail, stuck
}

func (d *tape) written() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.log, " ")
}

func newRecords(t *testing.T) (*Records, *strings.Builder) {
	t.Helper()
	state, err := OpenState(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = state.Close() })
	var log strings.Builder
	return newRecordsOf(t, state, &log), &log
}

func newRecordsOf(t *testing.T, state *State, log io.Writer) *Records {
	t.Helper()
	r, err := NewRecords(state, slog.New(slog.NewTextHandler(log, nil)), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// keep writes, and returns how long that took.
func keep(t *testing.T, r *Records, name string, write func() error) time.Duration {
	t.Helper()
	begin := time.Now()
	if err := r.keep(name, write); err != nil {
		t.Errorf("keep(%s) = %v", name, err)
	}
	return time.Since(begin)
}

// Writes to a full disk are retried until all succeed, and block no caller.
func TestRecordsOfAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, log := newRecords(t)
		d := &tape{fail: syscall.ENOSPC}
		for _, name := range []string{"a", "b", "a", "c"} {
			if took := keep(t, r, name, d.write(name+"2")); took != 0 {
				t.Errorf("%s took %s, want 0", name, took)
			}
		}
		if err := r.Check(); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "3 files are not on disk, the first since 2000-01-01T00:00:00Z") {
			t.Errorf("Check() = %v", err)
		}
		<-time.After(time.Hour)
		d.set(nil, nil)
		<-time.After(retryPause)
		synctest.Wait()
		if got := d.written(); len(got) != len("a2 b2 c2") || r.unwritten() != 0 {
			t.Errorf("written: %q, want each once; %d are not", got, r.unwritten())
		}
		if err := r.Check(); err != nil {
			t.Errorf("Check() = %v", err)
		}
		if got := log.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "state is not on disk") || !strings.Contains(got, "is writable again") {
			t.Errorf("log: %s", got)
		}
		if took := keep(t, r, "a", d.write("a3")); took != 0 {
			t.Errorf("afterwards one took %s", took)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A file that cannot be written does not delay other files.
func TestRecordsWithABadFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newRecords(t)
		bad, good := &tape{fail: syscall.EISDIR}, &tape{}
		keep(t, r, "bad", bad.write("bad"))
		for n := range 3 {
			keep(t, r, strconv.Itoa(n), good.write(strconv.Itoa(n)))
		}
		<-time.After(4 * retryPause)
		synctest.Wait()
		if got := good.written(); got != "0 1 2" {
			t.Errorf("written: %q", got)
		}
		if err := r.Close(); err == nil || !strings.Contains(err.Error(), "1 files could not be written and are lost") {
			t.Errorf("Close() = %v", err)
		}
		if err := r.Write("a", nil); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("Write() after Close() = %v", err)
		}
	})
}

// The last content of a file is written in the end, even if an earlier one is being written.
func TestRecordsOfAStuckDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newRecords(t)
		stuck := make(chan struct{})
		d := &tape{stuck: stuck}
		for n := range 3 {
			want := time.Duration(0)
			if n == 0 {
				want = recordPatience
			}
			if took := keep(t, r, "a", d.write(fmt.Sprint("a", n))); took != want {
				t.Errorf("%d took %s, want %s", n, took, want)
			}
		}
		d.set(nil, nil)
		close(stuck)
		synctest.Wait()
		if diff := cmp.Diff("a0 a2", d.written()); diff != "" {
			t.Error(diff)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Content that is on disk already is not written again, and says nothing about the disk.
func TestRecordsThatAreKeptAlready(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newRecords(t)
		if err := r.Write("a", []byte("1")); err != nil {
			t.Fatal(err)
		}
		written := r.state.lastWrite()
		<-time.After(time.Minute)
		r.later("a", []byte("1"))
		synctest.Wait()
		if at := r.state.lastWrite(); !at.Equal(written) {
			t.Errorf("the last write was at %s, want %s", at, written)
		}
		r.later("a", []byte("2"))
		synctest.Wait()
		if at := r.state.lastWrite(); at.Equal(written) {
			t.Errorf("the last write was at %s", at)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A disk that hangs does not delay the end.
func TestRecordsEndWhileStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newRecords(t)
		stuck := make(chan struct{})
		keep(t, r, "a", (&tape{stuck: stuck}).write("a"))
		begin := time.Now()
		if err := r.Close(); err == nil || time.Since(begin) != closePatience {
			t.Errorf("Close() = %v after %s", err, time.Since(begin))
		}
		close(stuck)
	})
}

// Check writes a file itself: a directory may look fine although its disk accepts no writes.
func TestRecordsCheckWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newRecords(t)
		for range 2 {
			if err := r.Check(); err != nil {
				t.Error(err)
			}
			first, err := r.Read(probeRecord)
			if err != nil || len(first) == 0 {
				t.Errorf("Read() = %q, %v", first, err)
			}
			<-time.After(probeEvery + time.Second)
			if err := r.Check(); err != nil {
				t.Error(err)
			}
			if second, _ := r.Read(probeRecord); string(second) == string(first) {
				t.Errorf("it has still %q", first)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

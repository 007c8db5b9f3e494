// Package proc reads the CPU time of a process from /proc, and the memory of a process at rest.
package proc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/internal/testing/memorytest"
)

// Time is how long threads ran, and how long they were ready to run while other threads had the CPUs.
type Time struct{ Ran, Waited time.Duration }

// Since returns the difference to an earlier Time.
func (t Time) Since(before Time) Time { return Time{t.Ran - before.Ran, t.Waited - before.Waited} }

// CPU returns the scheduler's time of all threads of processes. It omits threads that have ended, which is rare in Go
// programs.
func CPU(pids ...int) (Time, error) {
	var total Time
	for _, pid := range pids {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		if err != nil {
			return Time{}, err
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
				continue // the thread has ended
			}
			var ran, waited int64 // ns
			if err == nil {
				_, err = fmt.Sscan(string(data), &ran, &waited)
			}
			if err != nil {
				return Time{}, fmt.Errorf("read %s: %w", file, err)
			}
			total.Ran += time.Duration(ran)
			total.Waited += time.Duration(waited)
		}
	}
	if total.Ran == 0 {
		return Time{}, errors.New("the kernel does not measure threads: it lacks /proc/PID/task/*/schedstat")
	}
	return total, nil
}

// pause is the interval between two checks whether a process is at rest.
const pause = 100 * time.Millisecond

// RestingCPU returns the running time of all threads of a process, once it is at rest: the work of a change continues
// for a while after the last ACK. It waits for at most ten seconds.
func RestingCPU(ctx context.Context, pid int) (time.Duration, error) {
	last := time.Duration(0)
	for range 100 {
		now, err := CPU(pid)
		if err != nil || now.Ran-last < time.Millisecond {
			return now.Ran, err
		}
		last = now.Ran
		if err := run.Sleep(ctx, pause); err != nil {
			return 0, err
		}
	}
	return last, nil
}

// settleAtMost bounds the wait, because a program may return memory at any time.
const settleAtMost = 15 * time.Second

// RestingRSS returns the RssAnon of a process in bytes, once it no longer changes.
func RestingRSS(ctx context.Context, pid int) (float64, error) {
	last, stays := 0.0, 0
	for began := time.Now(); stays < 6 && time.Since(began) < settleAtMost; {
		m, err := memorytest.Of(pid)
		if err != nil {
			return 0, err
		}
		if stays++; math.Abs(m.RssAnon-last) > 0.002*m.RssAnon {
			stays = 0
		}
		last = m.RssAnon
		if err := run.Sleep(ctx, pause); err != nil {
			return 0, err
		}
	}
	return last, nil
}

// Package disk bounds operations on a disk that may hang: a frozen file system, or a network file system whose server
// is unreachable.
package disk

import (
	"errors"
	"fmt"
	"time"
)

// Timeout bounds a disk operation.
const Timeout = 5 * time.Second

// ErrNoAnswer means that a disk does not answer.
var ErrNoAnswer = errors.New("no answer from the disk")

var errTimeout = fmt.Errorf("%w within %s", ErrNoAnswer, Timeout)

// Disk runs one operation at a time, so that a hanging operation holds only one goroutine and its thread. Any goroutine
// may use it.
type Disk struct{ turn chan struct{} }

// New returns a disk.
func New() Disk { return Disk{make(chan struct{}, 1)} }

// Ask runs op, a disk operation, and returns its result. After Timeout, including the wait for other operations, it
// returns ErrNoAnswer; op may still run or complete.
func Ask[T any](d Disk, op func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var none T
	timeout := time.NewTimer(Timeout)
	defer timeout.Stop()
	select {
	case d.turn <- struct{}{}:
	case <-timeout.C:
		return none, errTimeout
	}
	answered := make(chan answer, 1)
	go func() {
		value, err := op()
		<-d.turn
		answered <- answer{value, err}
	}()
	select {
	case a := <-answered:
		return a.value, a.err
	case <-timeout.C:
		return none, errTimeout
	}
}

// Do is Ask for an operation that only returns an error.
func (d Disk) Do(op func() error) error {
	_, err := Ask(d, func() (struct{}, error) { return struct{}{}, op() })
	return err
}

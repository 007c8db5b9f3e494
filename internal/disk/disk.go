// Package disk asks a disk that may not answer: a file system that is frozen, or one of a network that has gone.
package disk

import (
	"errors"
	"fmt"
	"time"
)

// Timeout is how long a disk is waited for.
const Timeout = 5 * time.Second

// ErrNoAnswer says that a disk does not answer.
var ErrNoAnswer = errors.New("no answer from the disk")

var errTimeout = fmt.Errorf("%w within %s", ErrNoAnswer, Timeout)

// Disk is asked one thing at a time, so that one that does not answer holds one goroutine and its thread. It may be used from any goroutine.
type Disk struct{ turn chan struct{} }

// New returns a disk.
func New() Disk { return Disk{make(chan struct{}, 1)} }

// Ask calls op, which asks the disk, and returns what it returns. After Timeout, also while others ask, it returns ErrNoAnswer: op may still be carried
// out.
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

// Do is Ask for what returns an error alone.
func (d Disk) Do(op func() error) error {
	_, err := Ask(d, func() (struct{}, error) { return struct{}{}, op() })
	return err
}

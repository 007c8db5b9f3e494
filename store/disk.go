package store

import (
	"fmt"
	"time"
)

// diskTimeout is how long the disk of the state directory is waited for.
const diskTimeout = 5 * time.Second

// errNoAnswer says that a disk is stuck: nothing that it was asked comes back.
var errNoAnswer = fmt.Errorf("the disk has not answered for %s", diskTimeout)

// disk calls what may never return, such as a write to a file system that is frozen. Calls come one at a time, so that a disk which is
// stuck holds one goroutine and its thread.
type disk struct{ turn chan struct{} }

func newDisk() disk { return disk{make(chan struct{}, 1)} }

// ask calls op, and returns what it returns. After diskTimeout it returns errNoAnswer: op may still be carried out.
func ask[T any](d disk, op func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var none T
	timeout := time.NewTimer(diskTimeout)
	defer timeout.Stop()
	select {
	case d.turn <- struct{}{}:
	case <-timeout.C:
		return none, errNoAnswer
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
		return none, errNoAnswer
	}
}

// do is ask for what returns nothing.
func (d disk) do(op func() error) error {
	_, err := ask(d, func() (struct{}, error) { return struct{}{}, op() })
	return err
}

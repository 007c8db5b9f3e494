package clock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

func TestReal(t *testing.T) {
	<-time.After(1)                               // want `TestReal calls time.After outside a bubble: run it in synctest.Test or virtual.Run, or move the test to test/real`
	time.AfterFunc(1, func() {})                  // want `TestReal calls time.AfterFunc outside`
	time.NewTimer(1)                              // want `calls time.NewTimer outside`
	time.NewTicker(1)                             // want `calls time.NewTicker outside`
	time.Tick(1)                                  // want `calls time.Tick outside`
	time.Sleep(1)                                 // want `calls time.Sleep outside`
	context.WithTimeout(t.Context(), 1)           // want `calls context.WithTimeout outside`
	context.WithDeadline(t.Context(), time.Now()) // want `calls context.WithDeadline outside`
	wait.For(t, "", nil)                          // want `calls wait.For outside`
	t.Run("sub", func(t *testing.T) {
		time.Sleep(1)                    // want `TestReal calls time.Sleep outside`
		defer func() { time.Sleep(1) }() // want `TestReal calls time.Sleep outside`
	})
	t.Cleanup(func() {
		select {
		case <-time.After(1): // want `TestReal calls time.After outside`
		default:
		}
	})
}

func TestVirtual(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		<-time.After(1)
		time.Sleep(1)
		wait.For(t, "", nil)
		go func() { time.NewTimer(1) }()
	})
	virtual.Run(t, "sub", func(t *testing.T) {
		context.WithTimeout(t.Context(), 1)
		t.Cleanup(func() { time.Sleep(1) })
	})
	time.Sleep(1) // want `TestVirtual calls time.Sleep outside`
}

func TestNoWait(t *testing.T) {
	time.Now()
	time.Since(time.Now())
	context.WithCancel(t.Context())
	var timer *time.Timer
	_ = timer
}

func BenchmarkReal(b *testing.B) { time.Sleep(1) }

func ExampleReal() { time.Sleep(1) } // want `ExampleReal calls time.Sleep outside`

func FuzzReal(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) { time.Sleep(1) }) // want `FuzzReal calls time.Sleep outside`
}

func TestMain(m *testing.M) {
	time.Sleep(1) // want `TestMain calls time.Sleep outside`
	m.Run()
}

func init() { time.Sleep(1) } // want `init calls time.Sleep outside`

var timer = time.NewTimer(1) // want `a variable of the package calls time.NewTimer outside`

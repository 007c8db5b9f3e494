package reach

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// Helpers.

func inside() { deeper() }
func deeper() { time.Sleep(1) }

func outside() { time.Sleep(1) } // want `outside calls time.Sleep, and TestHelpers reaches it outside a bubble:`

func dead() { time.Sleep(1) }

type server struct{}

func (*server) inside()  { time.Sleep(1) }
func (*server) outside() { time.Sleep(1) } // want `server.outside calls time.Sleep, and TestHelpers reaches it`

func TestHelpers(t *testing.T) {
	s := &server{}
	outside()
	s.outside()
	synctest.Test(t, func(t *testing.T) {
		inside()
		outside()
		s.inside()
		s.outside()
	})
}

// A bubble that a function makes for others, over two more.

func bubbled(t *testing.T, name string, f func(t *testing.T)) { again(t, f) }
func again(t *testing.T, f func(t *testing.T)) {
	virtual.Run(t, "sub", func(t *testing.T) { f(t) })
}
func direct(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) }

func real(t *testing.T, f func(t *testing.T)) { f(t) }

func TestBubbled(t *testing.T) {
	bubbled(t, "sub", func(t *testing.T) { time.Sleep(1) })
	bubbled(t, "sub", tested)
	direct(t, func(t *testing.T) { time.Sleep(1) })
	real(t, func(t *testing.T) { time.Sleep(1) }) // want `TestBubbled calls time.Sleep outside`
}

func tested(t *testing.T) { time.Sleep(1) }

// Functions as values.

func TestVariables(t *testing.T) {
	pause := func() { time.Sleep(1) }
	longer := func() { time.Sleep(1) } // want `TestVariables calls time.Sleep outside`
	never := func() { time.Sleep(1) }
	all := []func(){pause, func() { time.Sleep(1) }}
	some := []func(){func() { time.Sleep(1) }} // want `TestVariables calls time.Sleep outside`
	for _, f := range some {
		f()
	}
	longer()
	Each(value)
	_ = never
	synctest.Test(t, func(t *testing.T) {
		pause()
		for _, f := range all {
			f()
		}
		made(t)()
	})
	made2()()
}

func value() { time.Sleep(1) } // want `value calls time.Sleep, and TestVariables reaches it`

func made(t *testing.T) func() { return func() { time.Sleep(1) } }

func made2() func() { return func() { time.Sleep(1) } } // want `made2 calls time.Sleep, and TestVariables reaches it`

type tableCase struct {
	virtual func()
	real    func()
}

func (c tableCase) run(t *testing.T) { time.Sleep(1) }

func TestTable(t *testing.T) {
	for name, tc := range map[string]tableCase{
		"one": {virtual: func() { time.Sleep(1) }, real: func() { time.Sleep(1) }}, // want `TestTable calls time.Sleep outside`
		"two": {virtual: pausing},
	} {
		tc.real()
		virtual.Run(t, name, tc.run)
		virtual.Run(t, name, func(t *testing.T) { tc.virtual() })
	}
}

func pausing() { time.Sleep(1) }

var packageWide = func() { time.Sleep(1) }

func TestPackageWide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { packageWide() })
}

// What product code calls.

func TestCallback(t *testing.T) {
	Start(Options{Retry: func() { time.Sleep(1) }}) // want `TestCallback calls time.Sleep outside`
}

func TestCallbackInABubble(t *testing.T) {
	for name, o := range map[string]Options{"slow": {Retry: func() { time.Sleep(1) }}} {
		virtual.Run(t, name, func(t *testing.T) { Start(o) })
	}
}

type slowStore struct{}

func (slowStore) Get() { time.Sleep(1) } // want Get:"calls time.Sleep"

type realStore struct{}

func (realStore) Get() { time.Sleep(1) } // want Get:"calls time.Sleep" `realStore.Get calls time.Sleep, and TestInterface reaches it`

var _ Store = realStore{}

func TestInterface(t *testing.T) { Use(realStore{}) }

func TestInterfaceInABubble(t *testing.T) {
	for name, s := range map[string]Store{"slow": slowStore{}} {
		virtual.Run(t, name, func(t *testing.T) { Use(s) })
	}
}

type sharedStore struct{}

func (sharedStore) Get() { time.Sleep(1) } // want Get:"calls time.Sleep"

func newStore() Store { return sharedStore{} }

func TestSharedOutside(t *testing.T) { newStore() }

func TestSharedInside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { Use(newStore()) })
}

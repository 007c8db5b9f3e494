package virtual

import (
	"testing"
	"testing/synctest"
)

func Run(t *testing.T, name string, f func(t *testing.T)) bool { // want Run:"makes a bubble for .2."
	return t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

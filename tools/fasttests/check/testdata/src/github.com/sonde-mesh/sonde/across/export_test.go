package across

import (
	"testing"
	"testing/synctest"
	"time"
)

func Pause() { time.Sleep(1) } // want Pause:"calls time.Sleep"

func InBubble(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) } // want InBubble:"makes a bubble for .1."

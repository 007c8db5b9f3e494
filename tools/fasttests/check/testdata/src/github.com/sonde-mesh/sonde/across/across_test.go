package across_test

import (
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/across"
	"github.com/sonde-mesh/sonde/across/rig"
)

func TestOutside(t *testing.T) {
	across.Pause() // want `TestOutside calls Pause \(time.Sleep\) outside a bubble`
}

func TestInside(t *testing.T) {
	across.InBubble(t, func(t *testing.T) { across.Pause() })
	rig.Play(t, 1, func(t *testing.T) { time.Sleep(1) })
	rig.Each(t, func(t *testing.T) { time.Sleep(1) }) // want `TestInside calls time.Sleep outside a bubble`
}

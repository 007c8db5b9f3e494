package rig

import (
	"testing"
	"testing/synctest"
	"time"
)

func Play(t *testing.T, n int, f func(t *testing.T)) { // want Play:"makes a bubble for .2."
	time.Sleep(1)
	synctest.Test(t, func(t *testing.T) { f(t) })
}

func Each(t *testing.T, f func(t *testing.T)) { f(t) }

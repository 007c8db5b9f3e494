package sourcelimit

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

func TestEachSourceHasItsOwnRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(1, 3)
		one := netip.MustParsePrefix("10.0.0.1/32")
		allowed := func() (n int) {
			for range 10 {
				if l.Allow(one) {
					n++
				}
			}
			return n
		}
		if n := allowed(); n != 3 {
			t.Errorf("%d of a burst are allowed, want 3", n)
		}
		others := 0
		for i := range byte(100) {
			if l.Allow(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 1, i}), 32)) {
				others++
			}
		}
		if others < 90 { // a few sources share a limiter
			t.Errorf("%d of 100 other sources are allowed, want nearly all", others)
		}
		time.Sleep(2 * time.Second)
		if n := allowed(); n != 2 {
			t.Errorf("%d are allowed after two seconds, want 2", n)
		}
	})
}

package mtls

import (
	"cmp"
	"time"

	"golang.org/x/time/rate"
)

// limits of connections. The zero value has the defaults.
type limits struct {
	// arrivals is how many connections may be between their acceptance and the end of their handshake, those that wait for it included:
	// all clients reconnect at once after a restart. Default 8192.
	arrivals int
	// helloTimeout is how long a connection may take to send its first record, while no other connection needs its place. Default 20s.
	helloTimeout time.Duration
	// handshakes that may be in progress at once. Default: a quarter of the memory, but at least 256 and at most 8192.
	handshakes int
	// handshakeTimeout of the rest of the handshake, and then of the first bytes of HTTP/2, while no other connection needs its place. Default 20s.
	handshakeTimeout time.Duration
	// handshakeBytes is how much is read in a handshake. A client's flight is 2 to 4 KiB. Default 32 KiB.
	handshakeBytes int64
	// patience is how long at least a client in its handshake, or without a certificate and without a call, is waited for while others wait
	// for its place. Where good clients are slow too, it is up to maxPatience. Defaults 500ms and 10s.
	patience, maxPatience time.Duration
	// waitTimeout is how long a connection may wait for a place. Default 20s.
	waitTimeout time.Duration
	// unauthenticated connections that may be open at once, of agents that join. Default: an eighth of the memory, but at least 256 and at
	// most 8192.
	unauthenticated int
	// unauthenticatedLife is how long each of them may last. Default 30s.
	unauthenticatedLife time.Duration
	// unauthenticatedBytes is how much is read from each of them after its handshake: a request to join is a token and a CSR. Default 64 KiB.
	unauthenticatedBytes int64
	// identified connections that one proxy may have at once, its Envoy's and its agent's: one more takes the place of one. Default 4.
	identified int
	// proxies is how many connections all proxies may have together: one more waits for a place. Default: no limit.
	proxies int
	// identifiedRate and identifiedBurst are at which pace all of them together are read, in bytes per second and bytes. Defaults 1 and 8 MiB.
	identifiedRate  rate.Limit
	identifiedBurst int
}

const (
	// defaultMemory of the control plane is that of the chart.
	defaultMemory = 512 << 20
	// A handshake, and a connection without a certificate with the messages of a join, take so many bytes (BenchmarkHeld of test/bench/handshakes).
	handshakeMemory       = 40 << 10
	unauthenticatedMemory = 64 << 10
	// leastPlaces and mostPlaces of both, whatever the memory.
	leastPlaces, mostPlaces = 256, 8192
)

// MaxArrivals is how many connections there may be before the end of their handshake.
const MaxArrivals = 8192

// Joins returns for how many connections of agents that join there is memory, 0 for the default.
func Joins(memory uint64) int { return places(cmp.Or(memory, defaultMemory)/8, unauthenticatedMemory) }

// places returns how many connections of a size take a part of the memory.
func places(memory uint64, size uint64) int {
	return int(min(max(memory/size, leastPlaces), mostPlaces))
}

// atMost returns n, or a lower limit unless that is 0.
func atMost(n, limit int) int {
	if limit > 0 {
		return min(n, limit)
	}
	return n
}

// callCost is how many bytes a call costs besides its own, since it takes a goroutine, and its few bytes may be reset at once.
const callCost = 4 << 10

func (l limits) withDefaults(memory uint64, p Places) limits {
	memory = cmp.Or(memory, defaultMemory)
	l.arrivals = atMost(cmp.Or(l.arrivals, MaxArrivals), p.Arrivals)
	l.helloTimeout = cmp.Or(l.helloTimeout, 20*time.Second)
	l.handshakes = min(cmp.Or(l.handshakes, places(memory/4, handshakeMemory)), l.arrivals) // each has arrived
	l.handshakeTimeout = cmp.Or(l.handshakeTimeout, 20*time.Second)
	l.handshakeBytes = cmp.Or(l.handshakeBytes, 32<<10)
	l.patience = cmp.Or(l.patience, 500*time.Millisecond)
	l.maxPatience = cmp.Or(l.maxPatience, 10*time.Second)
	l.waitTimeout = cmp.Or(l.waitTimeout, 20*time.Second)
	l.unauthenticated = atMost(cmp.Or(l.unauthenticated, Joins(memory)), p.Joins)
	l.unauthenticatedLife = cmp.Or(l.unauthenticatedLife, 30*time.Second)
	l.unauthenticatedBytes = cmp.Or(l.unauthenticatedBytes, 64<<10)
	l.identified = cmp.Or(l.identified, 4)
	l.proxies = cmp.Or(l.proxies, p.Proxies)
	l.identifiedRate = cmp.Or(l.identifiedRate, 1<<20)
	l.identifiedBurst = cmp.Or(l.identifiedBurst, 8<<20)
	return l
}

// total is the longest that a connection may take until its first bytes of HTTP/2.
func (l limits) total() time.Duration {
	return l.helloTimeout + 2*l.waitTimeout + 2*l.handshakeTimeout
}

package mtls

import (
	"cmp"
	"time"

	"golang.org/x/time/rate"
)

// limits are the limits of connections. The zero value has the defaults.
type limits struct {
	// arrivals limits the connections from their acceptance to the end of their handshake, including those that wait
	// for it: all clients reconnect at once after a restart. Default 8192.
	arrivals int
	// helloTimeout bounds the wait for a connection's first record while no other connection needs its place. Default
	// 20s.
	helloTimeout time.Duration
	// handshakes limits the handshakes in progress. Default: a quarter of the memory, but at least 256 and at most
	// 8192.
	handshakes int
	// handshakeTimeout bounds the rest of the handshake, and then the first bytes of HTTP/2, while no other connection
	// needs the place. Default 20s.
	handshakeTimeout time.Duration
	// handshakeBytes limits the bytes read in a handshake. A client sends 2 to 4 KiB. Default 32 KiB.
	handshakeBytes int64
	// patience is the minimum time that a client in its handshake, or without both a certificate and a call, may be
	// idle while others wait for its place. It grows up to maxPatience while well-behaved clients are also slow.
	// Defaults 500ms and 10s.
	patience, maxPatience time.Duration
	// waitTimeout bounds a connection's wait for a place. Default 20s.
	waitTimeout time.Duration
	// unauthenticated limits the open connections of joining agents. Default: an eighth of the memory, but at least 256
	// and at most 8192.
	unauthenticated int
	// unauthenticatedLife bounds their lifetime. Default 30s.
	unauthenticatedLife time.Duration
	// unauthenticatedBytes limits the bytes read from each after its handshake: a join request is a token and a CSR.
	// Default 64 KiB.
	unauthenticatedBytes int64
	// identified limits the connections of one proxy, of both Envoy and agent: a new connection beyond the limit evicts
	// another. Default 4.
	identified int
	// proxies limits the connections of all proxies together: a new connection beyond the limit waits. Default: no limit.
	proxies int
	// identifiedRate and identifiedBurst limit the bytes read from all connections of a proxy together: the rate in
	// bytes per second, and the burst in bytes. Defaults 1 and 8 MiB.
	identifiedRate  rate.Limit
	identifiedBurst int
}

const (
	// defaultMemory is the chart's memory limit of the control plane.
	defaultMemory = 512 << 20
	// Memory in bytes of a handshake, and of a connection without a certificate, including the messages of a join
	// (BenchmarkHeld of test/bench/handshakes).
	handshakeMemory       = 40 << 10
	unauthenticatedMemory = 64 << 10
	// leastPlaces and mostPlaces bound the limits of handshakes and of unauthenticated connections, whatever the
	// memory.
	leastPlaces, mostPlaces = 256, 8192
)

// MaxArrivals limits the connections before the end of their handshake.
const MaxArrivals = 8192

// Joins returns the limit of joining agents' connections for a memory limit; 0 means the default memory.
func Joins(memory uint64) int { return places(cmp.Or(memory, defaultMemory)/8, unauthenticatedMemory) }

// places returns the number of connections of a size that fit into a share of the memory.
func places(memory uint64, size uint64) int {
	return int(min(max(memory/size, leastPlaces), mostPlaces))
}

// atMost returns the minimum of n and limit; limit 0 means no limit.
func atMost(n, limit int) int {
	if limit > 0 {
		return min(n, limit)
	}
	return n
}

// callCost is the charge for a call in addition to its bytes: it needs a goroutine, and a client may reset it at once.
const callCost = 4 << 10

func (l limits) withDefaults(memory uint64, p Places) limits {
	memory = cmp.Or(memory, defaultMemory)
	l.arrivals = atMost(cmp.Or(l.arrivals, MaxArrivals), p.Arrivals)
	l.helloTimeout = cmp.Or(l.helloTimeout, 20*time.Second)
	l.handshakes = min(cmp.Or(l.handshakes, places(memory/4, handshakeMemory)), l.arrivals) // part of arrivals
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

// total is the longest time that a connection may take from its acceptance to its first bytes of HTTP/2.
func (l limits) total() time.Duration {
	return l.helloTimeout + 2*l.waitTimeout + 2*l.handshakeTimeout
}

package parity

import (
	"slices"
	"sync"
)

// calls returns the table of all calls.
var calls = sync.OnceValue(func() []*call {
	all := slices.Concat(http1Calls(), requestCalls(), http2Calls(), grpcCalls(), upgradeCalls(), tcpCalls())
	return slices.Concat(all, ipv6Calls(all), programCalls(), javaCalls())
})

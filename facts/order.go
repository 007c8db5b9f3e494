package facts

import (
	"cmp"
	"time"

	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
)

// Order tells which of several replicas knows something newer of a proxy. The zero Order is before all others. It does not trust clocks: what
// begins after something was heard is later than that.
type Order struct {
	// Time is in nanoseconds since 1970, Count how many sessions the process of an agent has had.
	Time, Count int64
}

// OrderAt returns the Order of what began at that time.
func OrderAt(t time.Time) Order { return Order{Time: t.UnixNano()} }

// Compare returns less than 0 if o is before p, and more if it is after p.
func (o Order) Compare(p Order) int {
	return cmp.Or(cmp.Compare(o.Time, p.Time), cmp.Compare(o.Count, p.Count))
}

// After returns o, or what comes next after p if that is not before o.
func (o Order) After(p Order) Order {
	if o.Compare(p) <= 0 {
		o.Time = p.Time + 1
	}
	return o
}

// OrderOf returns that of a message.
func OrderOf(m *peerv1.Order) Order { return Order{m.GetTime(), m.GetCount()} }

// Proto returns the message.
func (o Order) Proto() *peerv1.Order { return &peerv1.Order{Time: o.Time, Count: o.Count} }

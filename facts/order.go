package facts

import (
	"cmp"
	"time"

	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
)

// Order tells which replica has the newest fact about a proxy. The zero Order is before all others. It does not rely on
// equal clocks: an event after the receipt of another Order always gets a later Order.
type Order struct {
	// Time is in nanoseconds since 1970, Count is the number of sessions that the agent's process has had.
	Time, Count int64
}

// OrderAt returns the Order of an event at that time.
func OrderAt(t time.Time) Order { return Order{Time: t.UnixNano()} }

// Compare returns less than 0 if o is before p, and more if it is after p.
func (o Order) Compare(p Order) int {
	return cmp.Or(cmp.Compare(o.Time, p.Time), cmp.Compare(o.Count, p.Count))
}

// After returns o, or the next Order after p if o is not later than p.
func (o Order) After(p Order) Order {
	if o.Compare(p) <= 0 {
		o.Time = p.Time + 1
	}
	return o
}

// OrderOf returns the Order of a message.
func OrderOf(m *peerv1.Order) Order { return Order{m.GetTime(), m.GetCount()} }

// Proto returns the message.
func (o Order) Proto() *peerv1.Order { return &peerv1.Order{Time: o.Time, Count: o.Count} }

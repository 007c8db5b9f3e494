package plaintext

import (
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

const (
	// openFor is how long a connection counts as open after it was recorded last: its end may be lost.
	openFor = 5 * mesh.RecordsInterval / 2
	// maxOpen connections are known to be open. The rest count when they end.
	maxOpen = 4096
)

// open are the connections on which something goes on, by Envoy's number. All count in the tally of their source, too, which is not dropped
// while they do.
type open map[uint64]openConnection

type openConnection struct {
	of   *tally
	last time.Time // when it was recorded
}

// goesOn notes that something goes on on a connection of that source.
func (o open) goesOn(connection uint64, of *tally, at time.Time) {
	of.seen(at)
	before, known := o[connection]
	if !known && len(o) >= maxOpen {
		return
	}
	if before.of != of { // it is new, or an Envoy before this one had the number, too
		o.end(connection)
		of.open++
	}
	o[connection] = openConnection{of, at}
}

func (o open) end(connection uint64) {
	if c, known := o[connection]; known {
		c.of.open--
		delete(o, connection)
	}
}

// expire ends those that were not recorded for long.
func (o open) expire(at time.Time) {
	for connection, c := range o {
		if at.Sub(c.last) > openFor {
			o.end(connection)
		}
	}
}

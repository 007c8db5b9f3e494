package plaintext

import (
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

const (
	// openFor is how long a connection counts as open after its last record, since the record of its end may be lost.
	openFor = 5 * mesh.RecordsInterval / 2
	// maxOpen limits the number of connections tracked as open. Others count when they end.
	maxOpen = 4096
)

// open are the ongoing connections, by Envoy's connection number. Each also counts in the tally of its source, which is
// kept while the connection lasts.
type open map[uint64]openConnection

type openConnection struct {
	of   *tally
	last time.Time // time of the last record
}

// goesOn records that a connection of a source is ongoing.
func (o open) goesOn(connection uint64, of *tally, at time.Time) {
	of.seen(at)
	before, ok := o[connection]
	if !ok && len(o) >= maxOpen {
		return
	}
	if before.of != of { // new, or reused from a previous Envoy
		o.end(connection)
		of.open++
	}
	o[connection] = openConnection{of, at}
}

func (o open) end(connection uint64) {
	if c, ok := o[connection]; ok {
		c.of.open--
		delete(o, connection)
	}
}

// expire ends connections without recent records.
func (o open) expire(at time.Time) {
	for connection, c := range o {
		if at.Sub(c.last) > openFor {
			o.end(connection)
		}
	}
}

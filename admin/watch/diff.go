package watch

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// maxPartBytes bounds the entries of one message, unless one entry or the other fields of the list are longer.
const maxPartBytes = 64 << 10

// entry is one object of a list. It does not change, so that viewers share it.
type entry struct {
	name    string
	message proto.Message
	hash    uint64
	bytes   int
}

// snapshot is a section at a time. It does not change.
type snapshot struct {
	failed  *status.Status // nil if it was read
	entries []*entry       // sorted by name
	// rest has the fields of the list beside its entries.
	rest *entry
}

// denied is a section to which the caller has no right.
func denied(why *status.Status) *snapshot { return &snapshot{failed: why} }

var seed = maphash.MakeSeed()

// encoder makes entries, with one buffer for all.
type encoder struct{ buffer []byte }

// entry returns before if it has the same content. The error is of a string that is not UTF-8.
func (e *encoder) entry(name string, m proto.Message, before *entry) (*entry, error) {
	var err error
	e.buffer, err = proto.MarshalOptions{Deterministic: true}.MarshalAppend(e.buffer[:0], m)
	if err != nil {
		return nil, fmt.Errorf("encode %q: %w", name, err)
	}
	hash := maphash.Bytes(seed, e.buffer)
	if before != nil && before.hash == hash && before.bytes == len(e.buffer) {
		return before, nil
	}
	return &entry{name: name, message: m, hash: hash, bytes: len(e.buffer)}, nil
}

// next returns the snapshot of a list. It shares the entries that are as in the snapshot before, which may be nil.
func (s *snapshot) next(l list) (*snapshot, error) {
	before := map[string]*entry{}
	var restBefore *entry
	if s != nil {
		restBefore = s.rest
		for _, e := range s.entries {
			before[e.name] = e
		}
	}
	var encode encoder
	rest, err := encode.entry("", l.rest, restBefore)
	if err != nil {
		return nil, err
	}
	now := &snapshot{rest: rest}
	for i, m := range l.entries {
		e, err := encode.entry(l.names[i], m, before[l.names[i]])
		if err != nil {
			return nil, err
		}
		now.entries = append(now.entries, e)
	}
	slices.SortFunc(now.entries, func(a, b *entry) int { return strings.Compare(a.name, b.name) })
	return now, nil
}

// difference is what a viewer lacks.
type difference struct {
	changed []*entry
	removed []string
	rest    *entry // nil if it is the same
}

// since returns the difference to a snapshot before, which may be nil. Neither has an error.
func (s *snapshot) since(before *snapshot) difference {
	var d difference
	if before == nil {
		return difference{changed: s.entries, rest: s.rest}
	}
	if s.rest != before.rest {
		d.rest = s.rest
	}
	old := before.entries
	for _, e := range s.entries {
		for len(old) > 0 && old[0].name < e.name {
			d.removed = append(d.removed, old[0].name)
			old = old[1:]
		}
		if len(old) > 0 && old[0].name == e.name {
			if old[0] != e {
				d.changed = append(d.changed, e)
			}
			old = old[1:]
			continue
		}
		d.changed = append(d.changed, e)
	}
	for _, e := range old {
		d.removed = append(d.removed, e.name)
	}
	return d
}

// part takes the next message out of d.
func (d *difference) part(of section, reset bool) *adminv1.WatchResponse {
	m := &adminv1.WatchResponse{Section: of, Reset_: reset}
	var rest proto.Message
	left := maxPartBytes
	if d.rest != nil {
		rest, m.Rest = d.rest.message, true
		left -= d.rest.bytes
		d.rest = nil
	}
	n := 0
	var entries []proto.Message
	for n < len(d.changed) && (n == 0 || left >= d.changed[n].bytes) {
		left -= d.changed[n].bytes
		entries, m.Names = append(entries, d.changed[n].message), append(m.Names, d.changed[n].name)
		n++
	}
	d.changed = d.changed[n:]
	for n = 0; n < len(d.removed) && left > 0; n++ {
		left -= len(d.removed[n])
	}
	m.Removed, d.removed = d.removed[:n], d.removed[n:]
	if rest != nil || len(entries) > 0 {
		kinds[of].fill(m, rest, entries)
	}
	return m
}

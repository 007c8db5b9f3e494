package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"sync"
)

// maxVersions limits how many versions of a section are compared: a page that has an older one gets all of it.
const maxVersions = 8

// differences makes patches of sections, so that a page of a large mesh reads only the rows that have changed.
type differences struct {
	mu       sync.Mutex
	seed     maphash.Seed
	sections map[string][]version // the latest last
	last     map[string]patch     // by section, for the other pages
}

// patch is what has changed in a section between two revisions.
type patch struct {
	from, to string
	data     json.RawMessage
}

// version has the hashes of the rows of a revision.
type version struct {
	revision string
	rows     []uint64
}

func newDifferences() *differences {
	return &differences{seed: maphash.MakeSeed(), sections: map[string][]version{}, last: map[string]patch{}}
}

// patch returns data as what has changed since the revision that a page has: [FROM, COUNT] stands for these rows of the
// page's list, and each other row is as in data. It returns nil if the revisions cannot be compared.
func (d *differences) patch(name, have, revision string, data json.RawMessage) json.RawMessage {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.last[name]; p.from == have && p.to == revision {
		return p.data
	}
	rows, rest, ok := rowsOf(data)
	if !ok {
		return nil
	}
	now := version{revision, make([]uint64, len(rows))}
	for i, row := range rows {
		now.rows[i] = maphash.Bytes(d.seed, row)
	}
	before := d.exchange(name, have, now)
	if before == nil {
		return nil
	}
	body := rowsSince(before, now.rows, rows)
	body = append(body, rest...)
	d.last[name] = patch{have, revision, body}
	return body
}

// rowsFirst begins the sections that are lists.
const rowsFirst = `{"rows":[`

// rowsOf returns the rows of a section, and what follows the last one. Sections are compact JSON of this package, with
// megabytes in a large mesh: this takes a tenth of the time of json.Unmarshal.
func rowsOf(data []byte) (rows [][]byte, rest []byte, ok bool) {
	if !bytes.HasPrefix(data, []byte(rowsFirst)) {
		return nil, nil, false
	}
	depth, from := 0, len(rowsFirst)
	for i := from; i < len(data); i++ {
		switch data[i] {
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				if i > from {
					rows = append(rows, data[from:i])
				}
				return rows, data[i:], true
			}
			depth--
		case ',':
			if depth == 0 {
				rows, from = append(rows, data[from:i]), i+1
			}
		}
	}
	return nil, nil, false
}

// exchange keeps a version, and returns the rows of another one, nil if it is no longer kept. The caller holds mu.
func (d *differences) exchange(name, have string, now version) (before []uint64) {
	kept := false
	for _, v := range d.sections[name] {
		kept = kept || v.revision == now.revision
		if v.revision == have {
			before = v.rows
		}
	}
	if !kept {
		all := append(d.sections[name], now)
		d.sections[name] = all[max(0, len(all)-maxVersions):]
	}
	return before
}

// rowsSince writes rows as a patch.
func rowsSince(before, now []uint64, rows [][]byte) []byte {
	at := make(map[uint64]int, len(before))
	for i, hash := range before {
		at[hash] = i
	}
	var body bytes.Buffer
	body.WriteString(rowsFirst)
	for i := 0; i < len(now); {
		if i > 0 {
			body.WriteByte(',')
		}
		from, same := at[now[i]]
		if !same {
			body.Write(rows[i])
			i++
			continue
		}
		count := 1
		for i+count < len(now) && from+count < len(before) && now[i+count] == before[from+count] {
			count++
		}
		fmt.Fprintf(&body, "[%d,%d]", from, count)
		i += count
	}
	return body.Bytes()
}

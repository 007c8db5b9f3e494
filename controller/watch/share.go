package watch

import (
	"cmp"
	"container/heap"
	"slices"
	"time"
)

// Share bounds the records of one namespace. The oldest objects count, and of objects of equal age the first by name,
// so that all replicas agree; the others are beyond the share. An object larger than half of the share never counts, so
// that it does not displace others.
type Share[R any] struct {
	// Bytes that the records of a namespace may take. 0 means no bound.
	Bytes int
	// Takes returns the memory cost of a record in bytes, including derived objects. Default Size.
	Takes func(*R) int
	// Beyond returns the small record that replaces the record of an object beyond the share.
	Beyond func(*R) R
}

// defaultMemory is the chart's limit.
const defaultMemory = 512 << 20

// ShareOf returns the share of one namespace for the records of one kind and derived objects, by the memory limit of
// this process. It is a sixteenth, such as 32 MiB of 512, so that all kinds of one namespace together take at most half
// of the memory.
func ShareOf(memory uint64) int { return int(cmp.Or(memory, defaultMemory) / 16) }

// member is an object of a namespace with a share.
type member struct {
	name    string
	created time.Time
	version uint64 // resourceVersion
	takes   int
	at      int // index in beyond, or counts or tooLarge
	listed  any // its *trimmed while a list is being read
}

// Values of member.at outside beyond.
const (
	counts   = -1
	tooLarge = -2
)

func (m *member) compare(o *member) int {
	return cmp.Or(m.created.Compare(o.created), cmp.Compare(m.name, o.name))
}

// share has the members of a namespace. The oldest members count, as many as fit into it.
type share struct {
	largest  int // maximum for one member
	room     int // remaining bytes
	byName   map[string]*member
	counting []*member // by age
	beyond   beyond
}

func newShare(bytes int) *share {
	return &share{largest: bytes / 2, room: bytes, byName: map[string]*member{}}
}

// remove removes a member, if it exists.
func (s *share) remove(name string) {
	m := s.byName[name]
	switch {
	case m == nil:
		return
	case m.at >= 0:
		heap.Remove(&s.beyond, m.at)
	case m.at == counts:
		at, _ := slices.BinarySearchFunc(s.counting, m, (*member).compare)
		s.counting = slices.Delete(s.counting, at, at+1)
		s.room += m.takes
	}
	delete(s.byName, name)
}

// add adds or replaces a member, and reports whether it counts. It calls giveUp for members that must make room. If
// whole is false, the record of the member was replaced, so the member cannot count until fill has read it again.
func (s *share) add(m *member, whole bool, giveUp func(*member)) bool {
	s.remove(m.name)
	s.byName[m.name] = m
	oldest := s.oldestBeyond()
	if m.takes > s.largest {
		m.at = tooLarge
		return false
	}
	if !whole || oldest != nil && m.compare(oldest) > 0 {
		heap.Push(&s.beyond, m)
		return false
	}
	at, _ := slices.BinarySearchFunc(s.counting, m, (*member).compare)
	s.counting, m.at = slices.Insert(s.counting, at, m), counts
	s.room -= m.takes
	for s.room < 0 {
		last := s.counting[len(s.counting)-1]
		s.counting = slices.Delete(s.counting, len(s.counting)-1, len(s.counting))
		s.room += last.takes
		heap.Push(&s.beyond, last)
		if last != m {
			giveUp(last)
		}
	}
	return m.at == counts
}

func (s *share) oldestBeyond() *member {
	if len(s.beyond) == 0 {
		return nil
	}
	return s.beyond[0]
}

// next returns a member that does not count although the share now has room for it, or nil.
func (s *share) next() *member {
	if m := s.oldestBeyond(); m != nil && m.takes <= s.room {
		return m
	}
	return nil
}

// beyond is a heap of the members that do not count, oldest first.
type beyond []*member

func (b beyond) Len() int           { return len(b) }
func (b beyond) Less(i, j int) bool { return b[i].compare(b[j]) < 0 }
func (b beyond) Swap(i, j int)      { b[i], b[j], b[i].at, b[j].at = b[j], b[i], j, i }

// Push implements heap.Interface.
func (b *beyond) Push(x any) {
	m, _ := x.(*member)
	m.at = len(*b)
	*b = append(*b, m)
}

// Pop implements heap.Interface.
func (b *beyond) Pop() any {
	last := len(*b) - 1
	m := (*b)[last]
	(*b)[last], *b = nil, (*b)[:last]
	return m
}

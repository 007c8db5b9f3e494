package watch

import (
	"cmp"
	"container/heap"
	"slices"
	"time"
)

// Share bounds what is kept of the objects of one namespace: the oldest count, and of one age the first by name, so that all replicas agree. One that
// would take more than half of it never counts, so that it is in the way of no other.
type Share[R any] struct {
	// Bytes that the records of a namespace may take. 0 means no bound.
	Bytes int
	// Takes returns how many a record takes, with all that is made of it. Default Size.
	Takes func(*R) int
	// Beyond returns what is kept of a record that does not count: next to nothing.
	Beyond func(*R) R
}

// defaultMemory is that of the chart.
const defaultMemory = 512 << 20

// ShareOf returns what the records of one kind may take in one namespace, with what is made of them, of the memory of this process: 32 MiB of 512, and
// so no more than half of it for all kinds together.
func ShareOf(memory uint64) int { return int(cmp.Or(memory, defaultMemory) / 16) }

// member is an object of a namespace whose records have a share.
type member struct {
	name    string
	created time.Time
	version uint64 // resourceVersion
	takes   int
	at      int // in beyond, or counts or tooLarge
	listed  any // its *trimmed, of a list that is being read
}

// Places of members that are not in beyond.
const (
	counts   = -1
	tooLarge = -2
)

func (m *member) compare(o *member) int {
	return cmp.Or(m.created.Compare(o.created), cmp.Compare(m.name, o.name))
}

// share has the members of a namespace: those that count are the oldest ones, as many as there is room for.
type share struct {
	largest  int // that one may take
	room     int // that is left
	byName   map[string]*member
	counting []*member // by age
	beyond   beyond
}

func newShare(bytes int) *share {
	return &share{largest: bytes / 2, room: bytes, byName: map[string]*member{}}
}

// remove removes a member, if it is there.
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

// add adds a member or replaces it, and reports whether it counts. giveUp is called for others that have to make room for it. One that is not whole,
// since its record was given up, cannot count until it is read again.
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

// next returns the member that there is room for and that does not count, nil if there is none.
func (s *share) next() *member {
	if m := s.oldestBeyond(); m != nil && m.takes <= s.room {
		return m
	}
	return nil
}

// beyond is a heap of the members that do not count, the oldest first.
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

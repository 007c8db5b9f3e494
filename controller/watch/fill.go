package watch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
)

// claim adds an object to the share of its namespace, in the store or in the current list. If the share has no room for
// the object, claim replaces its record. It calls giveUp for other objects that no longer fit. The caller holds mu.
func (s *Store[O, R]) claim(listing bool, t *trimmed[R], giveUp func(*member)) {
	if s.kind.Share.Bytes == 0 {
		return
	}
	shares := s.shares
	if listing {
		shares = s.listed
	}
	in := shares[t.Namespace]
	switch {
	case t.record != nil:
		if in == nil {
			in = newShare(s.kind.Share.Bytes)
			shares[t.Namespace] = in
		}
		m := &member{name: t.Name, created: t.CreationTimestamp.Time, version: number(t.ResourceVersion), takes: t.takes}
		if listing {
			m.listed = t
		}
		if !in.add(m, !t.given, giveUp) {
			s.giveUp(t)
		}
	case in == nil:
		return
	default:
		in.remove(t.Name)
		if len(in.byName) == 0 {
			delete(shares, t.Namespace)
		}
	}
	if !listing {
		s.noteRoom(t.Namespace, in)
	}
}

// beginList drops the results of a failed list: the next attempt starts over.
func (s *Store[O, R]) beginList() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.listed)
}

// forgetShares removes objects that no longer exist from the shares, to make room for other objects. Their records stay
// until the list replaces them.
func (s *Store[O, R]) forgetShares(there map[Key]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for namespace, in := range s.shares {
		for name := range in.byName {
			if !there[Key{Namespace: namespace, Name: name}] {
				in.remove(name)
			}
		}
		s.noteRoom(namespace, in)
	}
}

// giveUp replaces the record of an object for which its share has no room.
func (s *Store[O, R]) giveUp(t *trimmed[R]) {
	if !t.given {
		r := s.kind.Share.Beyond(t.record)
		t.record, t.given = &r, true
	}
}

// Beyond returns how many objects are beyond the share of their namespace, by namespace.
func (s *Store[O, R]) Beyond() map[string]int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := map[string]int{}
	for namespace, in := range s.shares {
		if n := len(in.byName) - len(in.counting); n > 0 {
			all[namespace] = n
		}
	}
	return all
}

// noteRoom records whether a namespace has room for an object that was beyond its share. The caller holds mu.
func (s *Store[O, R]) noteRoom(namespace string, in *share) {
	if in.next() == nil {
		delete(s.roomy, namespace)
		return
	}
	s.roomy[namespace] = struct{}{}
	s.told.Set()
}

// Used returns the largest used part of a namespace's share, from 0 to 1.
func (s *Store[O, R]) Used() float64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	least := s.kind.Share.Bytes
	for _, in := range s.shares {
		least = min(least, in.room)
	}
	return 1 - float64(least)/float64(max(s.kind.Share.Bytes, 1))
}

const (
	// fillEvery is the pause between two reads of fill, and fillRetry the pause after an error.
	fillEvery = 20 * time.Millisecond
	fillRetry = 5 * time.Second
	// fillTimeout bounds a read: the client has no timeout, because of watches.
	fillTimeout = 30 * time.Second
)

// fill reads objects again that now have room in their share, since their records were replaced. Namespaces take turns.
func (s *Store[O, R]) fill(ctx context.Context) {
	for {
		pause := fillEvery
		if key, found := s.next(); !found {
			select {
			case <-ctx.Done():
				return
			case <-s.told:
				continue
			}
		} else if err := s.read(ctx, key); err != nil && !errors.Is(err, errOlder) {
			pause = fillRetry
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// next returns an object for which its namespace has room, from a random namespace, so that none waits for another.
func (s *Store[O, R]) next() (Key, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.missing != nil {
		return Key{}, false
	}
	for namespace := range s.roomy {
		return Key{Namespace: namespace, Name: s.shares[namespace].next().name}, true
	}
	return Key{}, false
}

// errOlder means that a read returned an older version than the store has seen.
var errOlder = errors.New("older than seen")

// isOlder reports whether the store has seen the deletion, or a newer version, of an object that was read again. The
// caller holds mu.
func (s *Store[O, R]) isOlder(t *trimmed[R]) bool {
	in := s.shares[t.Namespace]
	return in == nil || in.byName[t.Name] == nil || number(t.ResourceVersion) < in.byName[t.Name].version
}

// read reads an object that is still beyond its share, and puts it into the store.
func (s *Store[O, R]) read(ctx context.Context, key Key) error {
	one := fields.OneTermEqualSelector(metav1.ObjectNameField, key.Name).String() // the rights include list, but not get
	if s.kind.Fields != "" {
		one += "," + s.kind.Fields
	}
	ctx, cancel := context.WithTimeout(ctx, fillTimeout)
	defer cancel()
	list, err := cache.NewFilteredListWatchFromClient(s.kind.Client, s.kind.Resource, key.Namespace,
		func(o *metav1.ListOptions) {
			o.LabelSelector, o.FieldSelector = s.kind.Labels, one
		}).ListWithContext(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list %s: %w", s.kind.Resource, err)
	}
	objects, err := meta.ExtractList(list)
	if err != nil {
		return fmt.Errorf("list %s: %w", s.kind.Resource, err)
	}
	if len(objects) == 0 {
		return errOlder // the watch will report its deletion
	}
	t, err := s.trim(objects[0])
	if err != nil {
		return err
	}
	t.again = true
	if !s.put(t) {
		return errOlder
	}
	return nil
}

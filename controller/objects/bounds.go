package objects

import (
	"errors"
	"fmt"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// Estimated memory in bytes of an inbound and of an outbound, including Envoy's resources: each outbound may name a
// service that nothing else uses. perObject is the memory of an object beside its record.
const (
	bytesOfInbound  = 3 << 10
	bytesOfOutbound = 1 << 10
	perObject       = 512
)

// shareOf bounds the objects of a namespace. The share is twice as large as for other kinds, because a Dataplane object
// lists its outbounds, unlike a pod.
func shareOf(memory uint64) watch.Share[record] {
	return watch.Share[record]{
		Bytes: 2 * watch.ShareOf(memory),
		Takes: func(r *record) int {
			written := *r
			written.accepted = nil                               // our own status must not affect what counts
			n := 2*watch.Size(&written) + maxMessage + perObject // as written, and with defaults
			if d, is := r.object.(*mesh.Dataplane); is {
				n += bytesOfInbound*len(d.Spec.Networking.Inbound) + bytesOfOutbound*len(d.Spec.Networking.Outbound)
			}
			return n
		},
		Beyond: func(r *record) record {
			kept := record{uid: r.uid, generation: r.generation}
			if is := r.accepted; is != nil && is.Reason == v1alpha1.ReasonInvalid && is.Message == beyondShare(memory) {
				kept.accepted = is
			}
			return kept
		},
	}
}

// beyondShare returns the problem of an object that does not count, because its namespace has too many.
func beyondShare(memory uint64) string {
	return fmt.Sprintf("does not count: only the oldest objects of a namespace count, up to %d MiB of memory",
		2*watch.ShareOf(memory)>>20)
}

// exceeded returns which bounds a valid object exceeds: it was accepted by an API server that did not enforce these
// bounds yet.
func exceeded(o mesh.Object) error {
	bounded, is := o.(mesh.Bounded)
	if !is {
		return nil
	}
	if err := bounded.Exceeds(); err != nil {
		return errors.New("is in use, but exceeds the limits for new objects: " + inOneLine(err))
	}
	return nil
}

// note records the problem of an object, and reports whether it is new. The caller holds mu.
func (s *Objects) note(ref reference, r *record, err error, bounds bool) bool {
	text, was := cut.Marked(inOneLine(err), maxMessage), s.invalid[ref]
	if was.text == text {
		return false
	}
	if was.since.IsZero() {
		was.since = time.Now()
	}
	s.invalid[ref] = invalid{r.uid, text, was.since, bounds}
	return true
}

// logged returns the log attributes of an object and its problem.
func (r reference) logged(err error) []any {
	return []any{"resource", r.resource, "namespace", r.Namespace, "name", r.Name,
		"err", cut.Marked(inOneLine(err), maxMessage)}
}

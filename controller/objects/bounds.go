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

// What is made of an inbound and of an outbound takes about so many bytes beside the object: Envoy's resources, and an outbound may name a service of its own.
// perObject is what keeping any object takes beside its record.
const (
	bytesOfInbound  = 3 << 10
	bytesOfOutbound = 1 << 10
	perObject       = 512
)

// shareOf bounds what the objects of a namespace take. It is twice that of other kinds: a written Dataplane has its outbounds, unlike a pod.
func shareOf(memory uint64) watch.Share[record] {
	return watch.Share[record]{
		Bytes: 2 * watch.ShareOf(memory),
		Takes: func(r *record) int {
			written := *r
			written.accepted = nil                               // that this control plane writes it must not change what counts
			n := 2*watch.Size(&written) + maxMessage + perObject // as it is written, and with its defaults
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

// beyondShare is the problem of an object that does not count.
func beyondShare(memory uint64) string {
	return fmt.Sprintf("does not count: only the oldest objects of a namespace do, as many as %d MiB of memory are enough for", 2*watch.ShareOf(memory)>>20)
}

// exceeded returns which bounds an object exceeds that is used as it is: the API server took it before there were any.
func exceeded(o mesh.Object) error {
	bounded, is := o.(mesh.Bounded)
	if !is {
		return nil
	}
	if err := bounded.Exceeds(); err != nil {
		return errors.New("is used as it is, but has to become smaller: " + inOneLine(err))
	}
	return nil
}

// note notes what is wrong with an object, and reports whether that is new. mu is held.
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

// logged returns what the log says about an object.
func (r reference) logged(err error) []any {
	return []any{"resource", r.resource, "namespace", r.Namespace, "name", r.Name, "err", cut.Marked(inOneLine(err), maxMessage)}
}

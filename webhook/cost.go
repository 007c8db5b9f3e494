package webhook

import (
	"context"
	"fmt"
	"net/netip"

	"golang.org/x/sync/semaphore"

	"github.com/sonde-mesh/sonde/internal/connlimit"
)

// The memory of a decoded review is estimated from its JSON text, and limited: three bytes for an empty object in a
// list may become a container of more than a thousand bytes.
const (
	// Bytes for an element of a list, with copies of the list; for an object; for a field of an object.
	costOfElement, costOfObject, costOfField = 1 << 10, 512, 64
	// maxCost is the maximum cost of a review. The largest pod that API servers store costs less, even if it consists only
	// of environment variables.
	maxCost = 128 << 20
	// maxDepth limits the nesting of objects and lists.
	maxDepth = 1000
	// Parallel decoding: reviews up to smallCost share maxSmall bytes; at most maxMedium reviews up to mediumCost, such as
	// the largest usual pods; at most maxLarge others.
	smallCost  = 1 << 20
	maxSmall   = 32 << 20
	mediumCost = 16 << 20
	maxMedium  = 4
	maxLarge   = 1
)

// estimate is the cost of the beginning of a JSON text.
type estimate struct {
	cost   int
	quoted bool
	within []byte // open brackets
}

// costOf estimates the memory for decoding a JSON text, in bytes. It returns an error if that exceeds maxCost.
func costOf(body []byte) (int, error) {
	e := estimate{cost: len(body)}
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case e.quoted && c == '\\':
			i++
		case c == '"':
			e.quoted = !e.quoted
		case !e.quoted:
			e.add(c)
		}
		if e.cost > maxCost {
			return 0, malformed("has %d bytes with too many objects and values: decoding needs more than %d MiB", len(body), maxCost>>20)
		}
		if len(e.within) > maxDepth {
			return 0, malformed("objects and lists are nested deeper than %d levels", maxDepth)
		}
	}
	return e.cost, nil
}

// add adds a byte outside of strings.
func (e *estimate) add(c byte) {
	last := len(e.within) - 1
	switch c {
	case '{':
		e.within = append(e.within, c)
		e.cost += costOfObject
	case '[':
		e.within = append(e.within, c)
		e.cost += costOfElement
	case '}', ']':
		e.within = e.within[:max(last, 0)]
	case ',':
		if last >= 0 && e.within[last] == '[' {
			e.cost += costOfElement
		} else {
			e.cost += costOfField
		}
	}
}

// decoders limit parallel decoding.
type decoders struct {
	small         *semaphore.Weighted
	medium, large *connlimit.Places[netip.Prefix]
}

func newDecoders() decoders {
	return decoders{
		small:  semaphore.NewWeighted(maxSmall),
		medium: connlimit.NewPlaces[netip.Prefix](connlimit.Options{Total: maxMedium}),
		large:  connlimit.NewPlaces[netip.Prefix](connlimit.Options{Total: maxLarge}),
	}
}

// begin waits at most queueTimeout until a review may be decoded. The caller must call done when it no longer uses the
// review.
func (d decoders) begin(ctx context.Context, source netip.Prefix, body []byte) (done func(), err error) {
	cost, err := costOf(body)
	if err != nil {
		return nil, err
	}
	if cost <= smallCost {
		ctx, cancel := context.WithTimeout(ctx, queueTimeout)
		defer cancel()
		if d.small.Acquire(ctx, int64(cost)) != nil {
			return nil, errCrowded
		}
		return func() { d.small.Release(int64(cost)) }, nil
	}
	places := d.large
	if cost <= mediumCost {
		places = d.medium
	}
	place, ok := places.Await(ctx, queueTimeout, source, func() {})
	if !ok {
		return nil, errCrowded
	}
	return place.Leave, nil
}

var errCrowded = fmt.Errorf("%w: too many requests at once", errUnavailable)

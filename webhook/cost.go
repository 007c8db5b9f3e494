package webhook

import (
	"context"
	"fmt"
	"net/netip"

	"golang.org/x/sync/semaphore"

	"github.com/sonde-mesh/sonde/internal/connlimit"
)

// What a review takes once it is decoded is estimated from its text, and limited: an empty object in a list, of three bytes, may become a
// container of more than a thousand.
const (
	// The element of a list, copies of the list included; an object beside that; a field of an object.
	costOfElement, costOfObject, costOfField = 1 << 10, 512, 64
	// maxCost is that of the largest review that is decoded. A pod of the largest size that is stored, all of it variables, costs less.
	maxCost = 128 << 20
	// maxDepth is how deep objects and lists may be nested.
	maxDepth = 1000
	// Reviews up to smallCost are decoded beside each other, up to maxSmall in all; of those up to mediumCost, such as the largest pods that
	// are used, maxMedium at a time, and of others maxLarge.
	smallCost  = 1 << 20
	maxSmall   = 32 << 20
	mediumCost = 16 << 20
	maxMedium  = 4
	maxLarge   = 1
)

// estimate is the cost of a JSON text up to some byte of it.
type estimate struct {
	cost   int
	quoted bool
	within []byte // the brackets that are open
}

// costOf estimates what it takes to decode a JSON text, in bytes. The error says that it is more than is decoded.
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
			return 0, malformed("it has %d bytes, and too many objects and values: to decode it would take more than %d MiB", len(body), maxCost>>20)
		}
		if len(e.within) > maxDepth {
			return 0, malformed("objects and lists are nested deeper than %d", maxDepth)
		}
	}
	return e.cost, nil
}

// add adds a byte outside of texts.
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

// decoders limit what is decoded at a time.
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

// begin waits until a review may be decoded, for at most queueTimeout. done has to be called once nothing is kept of it.
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

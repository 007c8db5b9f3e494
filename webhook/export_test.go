package webhook

import "io"

// WithRandom returns options with another source of the IDs of hooks.
func (o Options) WithRandom(r io.Reader) Options {
	o.random = r
	return o
}

// HasRandom reports whether the options have a source of their own.
func (o Options) HasRandom() bool { return o.random != nil }

package identity

import "errors"

// Errors of token authentication that do not reject the token.
var (
	// ErrUnavailable means that the token cannot be checked now. The same token may be accepted soon.
	ErrUnavailable = errors.New("the token cannot be checked now")
	// ErrNotKnown means that the token may be valid, but that its proxy is unknown, perhaps only for now.
	ErrNotKnown = errors.New("the proxy is not known (yet)")
)

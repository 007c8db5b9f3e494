package identity

import "errors"

// Errors of the authentication of a token, beside those that refuse the token.
var (
	// ErrUnavailable says that the token cannot be checked now. The same token may be accepted soon.
	ErrUnavailable = errors.New("the token cannot be checked now")
	// ErrNotKnown says that the token may be valid, and that its proxy is not known, or not yet.
	ErrNotKnown = errors.New("the proxy is not known (yet)")
)

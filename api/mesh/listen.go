package mesh

import (
	"errors"
	"fmt"
	"net"
	"syscall"
)

// ListenError is the error of a port that could not be opened. It names the address field if this machine lacks that IP
// address or cannot resolve a name, and otherwise the port field. Both may be one field; Allowed of address says which
// addresses are allowed.
func ListenError(address, port FieldError, err error) error {
	at := port
	at.Err = err
	if _, name := errors.AsType[*net.DNSError](err); name { // such as *
		at = address
		at.Err = fmt.Errorf("%s: %w", address.Allowed, err)
	}
	// the last one is for a link-local address without a zone
	for _, foreign := range []error{syscall.EADDRNOTAVAIL, syscall.EAFNOSUPPORT, syscall.EINVAL} {
		if errors.Is(err, foreign) {
			at = address
			at.Err = fmt.Errorf("%s: %w", address.Allowed, err)
		}
	}
	return &at
}

// ListenError's messages for an address, for one with a port, and for one where an empty host means all addresses.
const (
	AllowedOwnAddress  = "must be an IP address of this machine, or * for all"
	AllowedOwnHostPort = "must have an IP address of this machine, or * for all"
	AllowedOwnOrNoHost = "must have an IP address of this machine, or no host for all"
)

package mesh

import (
	"errors"
	"fmt"
	"net"
	"syscall"
)

// ListenError is the error of a port that could not be opened: it names the field with the IP address if this machine does not have that address
// or does not know a name, and else the field with the number. Both may be one field; Allowed of address says which addresses are allowed.
func ListenError(address, port FieldError, err error) error {
	at := port
	at.Err = err
	if _, name := errors.AsType[*net.DNSError](err); name { // such as *
		at = address
		at.Err = fmt.Errorf("%s: %w", address.Allowed, err)
	}
	for _, foreign := range []error{syscall.EADDRNOTAVAIL, syscall.EAFNOSUPPORT, syscall.EINVAL} { // the last one is a link-local one without a zone
		if errors.Is(err, foreign) {
			at = address
			at.Err = fmt.Errorf("%s: %w", address.Allowed, err)
		}
	}
	return &at
}

// What ListenError says of an address, of one with a port, and of one for which no host stands for all.
const (
	AllowedOwnAddress  = "must be an IP address of this machine, or * for all"
	AllowedOwnHostPort = "must have an IP address of this machine, or * for all"
	AllowedOwnOrNoHost = "must have an IP address of this machine, or no host for all"
)

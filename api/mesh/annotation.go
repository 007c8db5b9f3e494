package mesh

import (
	"errors"
	"strconv"
	"strings"
)

// Errors of annotations and labels, with the allowed values.
var (
	errSwitch   = errors.New("must be enabled or disabled")
	errPort     = errors.New(AllowedPort)
	errLiveness = errors.New("must be suspended or native")
	errPorts    = errors.New("must be ports from 1 to 65535 with commas between them, or empty")
)

// ParseSwitch parses the value of an annotation or label that switches something on or off, such as
// AnnotationVirtualProbes. The error says what is allowed.
func ParseSwitch(value string) (on bool, err error) {
	switch value {
	case "enabled", "true":
		return true, nil
	case "disabled", "false":
		return false, nil
	}
	return false, errSwitch
}

// ParsePort parses a port. The error says what is allowed.
func ParsePort[P int32 | uint32](value string) (P, error) {
	n, err := strconv.ParseUint(value, 10, 16)
	if err != nil || n == 0 {
		return 0, errPort
	}
	return P(n), nil
}

// ParsePorts parses a list of ports such as "9800,9801", which may be empty. It returns the valid ports, sorted and
// without duplicates, even if there are invalid items. Then the error says what is allowed.
func ParsePorts[P int32 | uint32](value string) (ports []P, err error) {
	if strings.TrimSpace(value) == "" {
		return nil, nil
	}
	listed := map[P]bool{}
	for word := range strings.SplitSeq(value, ",") {
		port, wrong := ParsePort[P](strings.TrimSpace(word))
		switch {
		case wrong != nil:
			err = errPorts
		case !listed[port]:
			listed[port] = true
			ports = append(ports, port)
		}
	}
	return ports, err
}

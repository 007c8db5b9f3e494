package mesh

import "fmt"

// FieldError is one violation: which field, its value, and what is allowed.
type FieldError struct {
	// Field is the path as in the file: networking.inbound[0].tags["kuma.io/service"].
	Field string
	// Value as the user wrote it; "" for a missing one.
	Value string
	// Allowed says which values are allowed: "must be a port from 1 to 65535".
	Allowed string
}

// Error implements error.
func (e *FieldError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("%s: %s", e.Field, e.Allowed)
	}
	return fmt.Sprintf("%s: %q: %s", e.Field, e.Value, e.Allowed)
}

package mesh

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// FieldError.Allowed of a port, of a text and of an object.
const (
	AllowedPort   = "must be a port from 1 to 65535"
	AllowedText   = "must be a text: put it in quotes"
	AllowedObject = "must be an object"
)

// FieldError is one violation: which field, its value, and what is allowed.
//
// +kubebuilder:object:generate=false
type FieldError struct {
	// Field is the path as in the file: networking.inbound[0].tags["kuma.io/service"].
	Field string
	// Value as the user wrote it; "" for a missing one.
	Value string
	// Bare says that Value was written without quotes, as a number, true or false: it is no text, and errors show it without quotes, too.
	Bare bool
	// Allowed says which values are allowed: "must be a port from 1 to 65535".
	Allowed string
	// Err is why the value cannot be used, if that is not said by Allowed.
	Err error
}

// Error implements error.
func (e *FieldError) Error() string {
	why := cmp.Or(e.Err, errors.New(e.Allowed))
	if e.Value == "" {
		return fmt.Sprintf("%s: %v", e.Field, why)
	}
	if e.Bare {
		return fmt.Sprintf("%s: %s: %v", e.Field, e.Value, why)
	}
	return fmt.Sprintf("%s: %q: %v", e.Field, e.Value, why)
}

// Unwrap returns Err.
func (e *FieldError) Unwrap() error { return e.Err }

// MayBeSecret reports whether errors leave out the value of a field: headers of probes, and variables, may hold passwords and tokens.
func MayBeSecret(field string) bool {
	return strings.Contains(field, "httpGet.httpHeaders") || strings.Contains(field, ".env[")
}

// RenameFields returns err with other names for the fields that it names, for users who know a field by a flag or an
// annotation. err may join several errors; one that names no field of names stays as it is.
func RenameFields(err error, names map[string]string) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var errs []error
		for _, e := range joined.Unwrap() {
			errs = append(errs, RenameFields(e, names))
		}
		return errors.Join(errs...)
	}
	field, ok := errors.AsType[*FieldError](err)
	if !ok || names[field.Field] == "" {
		return err
	}
	renamed := *field
	renamed.Field = names[field.Field]
	return &renamed
}

// maxShown limits a value, or a key, in an error, in bytes.
const maxShown = 100

// Shorten returns the first bytes of a text, and "..." if that is not all of it, for errors.
func Shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

// maxFew is how many names Few has.
const maxFew = 3

// Few joins the first names for a message, and says how many more there are.
func Few(names []string) string {
	if more := len(names) - maxFew; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxFew], ", "), more)
	}
	return strings.Join(names, ", ")
}

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
	// Bare means that Value was written without quotes, as a number, true or false, and is shown like that in errors,
	// too.
	Bare bool
	// Allowed says which values are allowed: "must be a port from 1 to 65535".
	Allowed string
	// Err is why the value cannot be used, unless Allowed says so.
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

// MayBeSecret reports whether errors must leave out the value of a field: headers and commands of probes, and
// variables, may hold passwords and tokens.
func MayBeSecret(field string) bool {
	return strings.Contains(field, "httpGet.httpHeaders") || strings.Contains(field, "exec.command") ||
		strings.Contains(field, ".env[")
}

// RenameFields returns err with other names for its fields, for users who know a field by a flag or an annotation. err
// may join several errors; those about other fields are unchanged.
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

// Shorten returns at most the first most bytes of a text, with "..." if it was cut, for errors.
func Shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

// maxFew limits the names in Few.
const maxFew = 3

// Few joins the first names for a message, and adds how many more there are.
func Few(names []string) string {
	if more := len(names) - maxFew; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxFew], ", "), more)
	}
	return strings.Join(names, ", ")
}

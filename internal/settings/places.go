package settings

import (
	"errors"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Place is where the value of a flag stands, and whether that is no text there: a number, true or false.
type Place struct {
	Name string
	Bare bool
}

// Places has the places of flags, by their names with two dashes.
type Places map[string]Place

// Rename returns err with the places of the flags that it names, as mesh.RenameFields does.
func (p Places) Rename(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var errs []error
		for _, e := range joined.Unwrap() {
			errs = append(errs, p.Rename(e))
		}
		return errors.Join(errs...)
	}
	field, ok := errors.AsType[*mesh.FieldError](err)
	if !ok || p[field.Field].Name == "" {
		return err
	}
	renamed := *field
	renamed.Field, renamed.Bare = p[field.Field].Name, p[field.Field].Bare
	return &renamed
}

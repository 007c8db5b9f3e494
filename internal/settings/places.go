package settings

import (
	"errors"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Place is the source of a flag's value. It also tells whether the value there is a number, true or false, rather than
// text.
type Place struct {
	Name string
	Bare bool
}

// Places maps flags, by their names with two dashes, to the places of their values.
type Places map[string]Place

// Rename returns err with flags replaced by their places, as mesh.RenameFields does.
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

package manifest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// WithPlace adds the file and document to each line of an error.
func WithPlace(place string, err error) error {
	var errs []error
	for line := range strings.Lines(err.Error()) {
		errs = append(errs, fmt.Errorf("%s: error: %s", place, strings.TrimSpace(line)))
	}
	return errors.Join(errs...)
}

// ReportErrors writes the errors to stderr, and returns an error with their number, nil without any.
func ReportErrors(cmd *cobra.Command, path string, errs []error) error {
	for _, err := range errs {
		for line := range strings.Lines(err.Error()) {
			cmd.PrintErrf("%s\n", printer.OneLine(line))
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("%s: %s", path, printer.Plural(len(errs), "error"))
	}
	return nil
}

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
)

func report(f *figures) error {
	text := &strings.Builder{}
	for _, k := range f.keys {
		m := f.median(k)
		fmt.Fprintf(text, "| %s\t| %s\t| %s\t| %s\t| %.6g\t|\n", k.row, k.world, k.subject, k.figure, m)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', 0)
	_, err := io.WriteString(w, text.String())
	return errors.Join(err, w.Flush())
}

package printer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Width is the terminal width for tables with names of usual length.
const Width = 80

// Row of a table. Notes are lines below the row.
type Row struct {
	Cells []string
	Notes []string
	// Wide are the unabbreviated cells, and More the cells of additional columns.
	Wide, More []string
}

// maxWidth limits the width of a column in characters: a longer cell only shifts its own row.
const maxWidth = 64

// WriteTable writes a table with aligned columns.
func WriteTable(out *Output, header []string, rows []Row) {
	columns := Columns{Names: header}
	columns.WriteHeader(out, rows)
	columns.Write(out, rows)
}

// Facts are lines with a name and a text.
type Facts struct{ rows []Row }

// Add adds a line.
func (f *Facts) Add(name, text string) {
	f.rows = append(f.rows, Row{Cells: []string{name + ":", text}})
}

// Write writes the lines, with the texts aligned.
func (f *Facts) Write(out *Output) { (&Columns{}).Write(out, f.rows) }

// Columns are the columns of a table that is written in parts. Their widths never shrink.
type Columns struct {
	// Names of the columns. They select the cells with states, which have colours.
	Names  []string
	widths []int
}

// WriteHeader writes the names, with the widths that rows need.
func (c *Columns) WriteHeader(out *Output, rows []Row) {
	c.widen([]Row{{Cells: c.Names}})
	c.widen(rows)
	c.writeRow(out, Row{Cells: c.Names})
}

// Write writes rows. An empty cell is "-", so that each row has the same number of words.
func (c *Columns) Write(out *Output, rows []Row) {
	c.widen(rows)
	for _, r := range rows {
		c.writeRow(out, r)
	}
}

// shown returns the text of a cell.
func shown(cell string) string { return cmp.Or(OneLine(cell), "-") }

func (c *Columns) widen(rows []Row) {
	for _, r := range rows {
		for at, cell := range r.Cells {
			if at == len(c.widths) {
				c.widths = append(c.widths, 0)
			}
			if n := utf8.RuneCountInString(shown(cell)); n <= maxWidth {
				c.widths[at] = max(c.widths[at], n)
			}
		}
	}
}

func (c *Columns) writeRow(out *Output, r Row) {
	for at, cell := range r.Cells {
		cell = shown(cell)
		name := ""
		if at < len(c.Names) {
			name = c.Names[at]
		}
		out.Paint(colourOf(name, cell), cell)
		if at < len(r.Cells)-1 {
			fmt.Fprint(out, strings.Repeat(" ", max(0, c.widths[at]-utf8.RuneCountInString(cell))+3))
		}
	}
	fmt.Fprintln(out)
	for _, note := range r.Notes {
		fmt.Fprint(out, "  ")
		out.PaintLead(OneLine(note))
		fmt.Fprintln(out)
	}
}

// Differ reports whether rows have different values in a column.
func Differ(rows []Row, column int) bool {
	return slices.ContainsFunc(rows, func(r Row) bool { return r.Cells[column] != rows[0].Cells[column] })
}

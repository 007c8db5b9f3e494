// Package terminal detects terminals, and colours text on them.
package terminal

import (
	"fmt"
	"os"

	"golang.org/x/term"
)

// Is reports whether an output, such as os.Stderr, is a terminal.
func Is(output any) bool {
	file, ok := output.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// HasColours reports whether an output is a terminal whose user wants colours. Source: https://no-color.org.
func HasColours(output any) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && Is(output)
}

// Colour of a text, a parameter of the escape sequence "select graphic rendition". Source: ECMA-48, 8.3.117.
type Colour int

// Colours. Red is for problems, Yellow for warnings and expiry, Green for passed checks.
const (
	Plain  Colour = 0
	Red    Colour = 31
	Green  Colour = 32
	Yellow Colour = 33
)

// Begin and End enclose a text in a colour.
func (c Colour) Begin() string { return fmt.Sprintf("\x1b[%dm", c) }

// End ends any colour.
const End = "\x1b[0m"

// Paint returns the text in a colour.
func (c Colour) Paint(text string) string {
	if c == Plain {
		return text
	}
	return c.Begin() + text + End
}

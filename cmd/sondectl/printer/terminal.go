package printer

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sonde-mesh/sonde/internal/terminal"
)

// isUnsafe reports whether a character may control a terminal, or reorder other characters, instead of being shown.
func isUnsafe(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// OneLine replaces unsafe characters by spaces, so that a foreign text is one line and safe for a terminal.
func OneLine(text string) string {
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, string(utf8.RuneError)), isUnsafe), " ")
}

// Safe returns w, or for a terminal a writer that escapes unsafe characters other than newlines and tabs. Programs get
// the bytes unchanged, and data from applications or proxies cannot control a terminal.
func Safe(w io.Writer) io.Writer {
	if terminal.Is(w) {
		return escaping{w}
	}
	return w
}

// escaping writes to a terminal.
type escaping struct{ terminal io.Writer }

// Write implements io.Writer. The text must end with a whole character.
func (e escaping) Write(text []byte) (int, error) {
	if _, err := e.terminal.Write(escape(text)); err != nil {
		return 0, err
	}
	return len(text), nil
}

// escape escapes like JSON, which is also valid in quoted YAML. Invalid UTF-8 becomes \xNN.
func escape(text []byte) []byte {
	escaped := make([]byte, 0, len(text))
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && size == 1:
			escaped = fmt.Appendf(escaped, `\x%02x`, text[0])
		case isUnsafe(r) && r != '\n' && r != '\t':
			escaped = fmt.Appendf(escaped, `\u%04x`, r)
		default:
			escaped = append(escaped, text[:size]...)
		}
		text = text[size:]
	}
	return escaped
}

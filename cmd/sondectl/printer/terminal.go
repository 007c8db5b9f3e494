package printer

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"
)

// isUnsafe says of a character that a terminal may obey it, or show others elsewhere for it, instead of showing it.
func isUnsafe(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// OneLine replaces unsafe characters by spaces, so that a text of others is one line and safe for a terminal.
func OneLine(text string) string {
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, string(utf8.RuneError)), isUnsafe), " ")
}

// Safe returns w, or if that is a terminal a writer that escapes what is unsafe but for ends of lines and tabs: programs get the bytes as
// they are, and what an application or a proxy has sent commands no terminal.
func Safe(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return escaping{w}
		}
	}
	return w
}

// escaping is a terminal.
type escaping struct{ terminal io.Writer }

// Write implements io.Writer. The text ends with a whole character.
func (e escaping) Write(text []byte) (int, error) {
	if _, err := e.terminal.Write(escape(text)); err != nil {
		return 0, err
	}
	return len(text), nil
}

// escape escapes as JSON does, which is right in JSON and in quotes of YAML, too; bytes that are no UTF-8 are \xNN.
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

package parent

import (
	"os"
	"strconv"
	"time"
)

// logger writes lines like those of slog's JSON handler, which needs more memory than all the rest here.
type logger struct{ to *os.File }

// write logs a constant message with pairs of keys and values.
func (l logger) write(level, message string, pairs ...string) {
	b := append([]byte(nil), `{"time":"`...)
	b = time.Now().AppendFormat(b, time.RFC3339Nano)
	b = append(b, `","level":"`...)
	b = append(b, level...)
	b = append(b, `","msg":`...)
	b = appendString(b, message)
	for n := 0; n+1 < len(pairs); n += 2 {
		b = append(b, ',')
		b = appendString(b, pairs[n])
		b = append(b, ':')
		b = appendString(b, pairs[n+1])
	}
	_, _ = l.to.Write(append(b, "}\n"...)) // there is nobody else to tell
}

// appendString quotes as JSON does: strconv does the same for printable ASCII, and all else becomes a question mark.
func appendString(b []byte, s string) []byte {
	clean := []byte(s)
	for n, c := range clean {
		if c < ' ' || c > '~' {
			clean[n] = '?'
		}
	}
	return strconv.AppendQuote(b, string(clean))
}

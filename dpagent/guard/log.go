package guard

import (
	"os"
	"strconv"
	"time"
)

// logger writes lines like those of slog's JSON handler, which would take more memory than the rest of the guard.
type logger struct{ to *os.File }

// write logs a constant message with pairs of a key and a value, a text or an int.
func (l logger) write(level, message string, pairs ...any) {
	b := append([]byte(nil), `{"time":"`...)
	b = time.Now().AppendFormat(b, time.RFC3339Nano)
	b = append(b, `","level":"`...)
	b = append(b, level...)
	b = append(b, `","msg":`...)
	b = appendString(b, message)
	for n := 0; n+1 < len(pairs); n += 2 {
		b = append(b, ',')
		b = appendValue(b, pairs[n])
		b = append(b, ':')
		b = appendValue(b, pairs[n+1])
	}
	_, _ = l.to.Write(append(b, "}\n"...)) // a failed write cannot be logged
}

func appendValue(b []byte, v any) []byte {
	if number, ok := v.(int); ok {
		return strconv.AppendInt(b, int64(number), 10)
	}
	text, _ := v.(string)
	return appendString(b, text)
}

// appendString appends s as a JSON string. For printable ASCII that is what strconv does; other bytes become question marks.
func appendString(b []byte, s string) []byte {
	clean := []byte(s)
	for n, c := range clean {
		if c < ' ' || c > '~' {
			clean[n] = '?'
		}
	}
	return strconv.AppendQuote(b, string(clean))
}

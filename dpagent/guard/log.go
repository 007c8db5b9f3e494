package guard

import (
	"os"
	"strconv"
	"time"
)

// LogFormat is the environment variable with the format of the guard's log: "text" or, for any other value, JSON.
// sonde-dp sets it, and a worker uses it as its flag --log-format.
const LogFormat = "SONDE_DP_LOG_FORMAT"

// logger writes lines like slog's handlers, which would take more memory than the rest of the guard.
type logger struct {
	to   *os.File
	text bool
}

func newLogger() logger { return logger{to: os.Stderr, text: os.Getenv(LogFormat) == "text"} }

// write logs a constant message with pairs of a key and a value, a text or an int.
func (l logger) write(level, message string, pairs ...any) {
	if l.text {
		l.writeText(level, message, pairs)
		return
	}
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

func (l logger) writeText(level, message string, pairs []any) {
	b := append([]byte(nil), "time="...)
	b = time.Now().AppendFormat(b, "2006-01-02T15:04:05.000Z07:00")
	b = append(b, " level="...)
	b = append(b, level...)
	b = append(b, " msg="...)
	b = appendString(b, message)
	for n := 0; n+1 < len(pairs); n += 2 {
		key, _ := pairs[n].(string)
		b = append(b, ' ')
		b = append(b, key...)
		b = append(b, '=')
		b = appendValue(b, pairs[n+1])
	}
	_, _ = l.to.Write(append(b, '\n')) // a failed write cannot be logged
}

func appendValue(b []byte, v any) []byte {
	if number, ok := v.(int); ok {
		return strconv.AppendInt(b, int64(number), 10)
	}
	text, _ := v.(string)
	return appendString(b, text)
}

// appendString appends s as a JSON string. It writes printable ASCII as strconv does, and other bytes as question
// marks.
func appendString(b []byte, s string) []byte {
	clean := []byte(s)
	for n, c := range clean {
		if c < ' ' || c > '~' {
			clean[n] = '?'
		}
	}
	return strconv.AppendQuote(b, string(clean))
}

package envoy

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/internal/cut"
)

const (
	logFormat = "%l|%n|%v"
	// maxLine is the maximum length of a line of Envoy's log, in bytes. Longer lines are cut.
	maxLine = 4 << 10
	// maxReason is the maximum length of Envoy's last error when it is reported as the reason of its end, in bytes.
	maxReason = 512
	// lastWords: an error in Envoy's log, or other output, may be the reason of Envoy's end if it is at most this old by
	// then.
	lastWords = 10 * time.Second
)

var levels = map[string]slog.Level{
	"trace": slog.LevelDebug, "debug": slog.LevelDebug, "info": slog.LevelInfo,
	"warning": slog.LevelWarn, "error": slog.LevelError, "critical": slog.LevelError,
}

// forwarder turns lines of Envoy's log into records of the agent's log.
type forwarder struct {
	logger *slog.Logger
	// The last error and its time, and the first output that is not a log line, such as a usage error. Read them only
	// after forward has returned.
	last, output     string
	lastAt, outputAt time.Time
}

func newForwarder(l *slog.Logger) *forwarder { return &forwarder{logger: l} }

// lastError returns the last error of an Envoy that has just ended, or else its first other output. It returns "" if
// Envoy ran on for longer than lastWords after both.
func (f *forwarder) lastError() string {
	switch {
	case time.Since(f.lastAt) <= lastWords:
		return f.last
	case time.Since(f.outputAt) <= lastWords:
		return f.output
	}
	return ""
}

// forward reads r to its end. A line longer than maxLine is cut.
func (f *forwarder) forward(r io.Reader) {
	lines := bufio.NewReaderSize(r, maxLine)
	for {
		line, more, err := lines.ReadLine()
		if err != nil {
			return
		}
		f.line(string(line), more)
		for more && err == nil {
			_, more, err = lines.ReadLine()
		}
	}
}

// isUnfinished reports whether a line is Envoy's warning about a work-in-progress option. Each listener that accepts
// methods of any name causes it; no other option does that, and an operator cannot change it. Envoy escapes the quotes
// around the option.
func isUnfinished(text string) bool {
	return strings.Contains(text, "Http1ProtocolOptions.allow_custom_methods") &&
		strings.Contains(text, "is marked as work-in-progress")
}

func (f *forwarder) line(text string, wasCut bool) {
	if isUnfinished(text) {
		return
	}
	const output = "output"
	level, logger := slog.LevelInfo, output
	if name, rest, ok := strings.Cut(text, "|"); ok {
		if known, isLog := levels[name]; isLog {
			level = known
			logger, text, _ = strings.Cut(rest, "|")
		}
	}
	text = redact(text)
	switch {
	case level >= slog.LevelError:
		f.last, f.lastAt = cut.Text(text, maxReason), time.Now()
	case logger == output && f.output == "":
		f.output, f.outputAt = cut.Text(text, maxReason), time.Now()
	}
	attrs := []slog.Attr{slog.String("logger", logger), slog.String("text", text)}
	if wasCut {
		attrs = append(attrs, slog.Bool("cut", true))
	}
	f.logger.LogAttrs(context.Background(), level, "envoy log", attrs...)
}

// parseFailure begins Envoy's message about a file that it cannot parse. The message contains the whole file, including
// a private key.
const parseFailure = "Unable to parse JSON as proto"

// redact removes everything from text that may be part of a private key.
func redact(text string) string {
	if before, _, ok := strings.Cut(text, parseFailure); ok {
		text = before + parseFailure + " (rest withheld)"
	}
	if isSecret(text) {
		return "(withheld: contains a private key)"
	}
	return text
}

// isSecret reports whether text may contain a private key: it mentions one, or has a long run of base64.
func isSecret(text string) bool {
	return strings.Contains(text, "PRIVATE KEY") || strings.Contains(text, "private_key") || longestBase64(text) >= minKey
}

// minKey is the length of one line of PEM, in bytes.
const minKey = 64

func longestBase64(text string) int {
	longest, run := 0, 0
	for n := range len(text) {
		c := text[n]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '+' || c == '/' || c == '=' {
			run++
			longest = max(longest, run)
		} else {
			run = 0
		}
	}
	return longest
}

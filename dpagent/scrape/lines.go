package scrape

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// maxLine is longer than any line of Envoy's, in bytes: names of its resources have at most a few hundred.
	maxLine = 16 << 10
	// maxLabels of a line are more than any of Envoy's has.
	maxLabels = 32
	// maxStatistics is what one scrape reads of Envoy, in bytes: 2,000 services take that if calls go to all of them.
	maxStatistics = 32 << 20
	// chunk is what is passed on at once, in bytes.
	chunk = 16 << 10
)

// typeComment begins the only comments that Envoy writes.
const typeComment = "# TYPE "

var errTooMuch = errors.New("envoy's statistics have more than 32 MiB")

// lines passes on the lines of Envoy's statistics whose names are wanted, and leaves out what Prometheus could not read: it refuses a whole
// page for one such line. It holds one line, and a chunk that is to be sent.
type lines struct {
	to   *bufio.Writer
	keep []string // prefixes of names; nil is all
	// sent says that the caller may have got some of them.
	sent bool
	// dropped counts the lines that could not be read.
	dropped int

	begun   []byte // a line whose end has not come
	tooLong bool   // it is longer than maxLine, and is left out
	read    int
	name    string // of the line before, which mostly is that of the next one, too
	wanted  bool   // whether it is
}

func newLines(to io.Writer, keep []string) *lines {
	l := &lines{keep: keep}
	l.to = bufio.NewWriterSize(passedOn{to, &l.sent}, chunk)
	return l
}

// passedOn notes that something was written.
type passedOn struct {
	io.Writer
	sent *bool
}

// Write implements io.Writer.
func (p passedOn) Write(b []byte) (int, error) {
	*p.sent = true
	return p.Writer.Write(b) //nolint:wrapcheck // it is that writer's
}

// Write implements io.Writer. It returns an error if the caller has gone, or if there is more than a scrape may have.
func (l *lines) Write(b []byte) (int, error) {
	if l.read += len(b); l.read > maxStatistics {
		return 0, errTooMuch
	}
	for rest := b; len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			l.begin(rest)
			break
		}
		if err := l.finish(rest[:end]); err != nil {
			return 0, err
		}
		rest = rest[end+1:]
	}
	return len(b), nil
}

// end sends what is left.
func (l *lines) end() error {
	if err := l.finish(nil); err != nil {
		return err
	}
	return l.to.Flush() //nolint:wrapcheck // it is the caller's connection
}

// begin keeps the beginning of a line.
func (l *lines) begin(part []byte) {
	if l.tooLong || len(l.begun)+len(part) > maxLine {
		l.begun, l.tooLong = l.begun[:0], true
		return
	}
	l.begun = append(l.begun, part...)
}

// finish takes the rest of a line, without its end.
func (l *lines) finish(part []byte) error {
	line := part
	if len(l.begun) > 0 || l.tooLong || len(part) > maxLine {
		l.begin(part)
		line = l.begun
	}
	tooLong := l.tooLong
	l.begun, l.tooLong = l.begun[:0], false
	if tooLong {
		l.dropped++
		return nil
	}
	return l.pass(bytes.TrimSuffix(line, []byte("\r")))
}

// pass passes a line on, if it is wanted and can be read.
func (l *lines) pass(line []byte) error {
	name, comment := nameOf(line)
	if len(line) == 0 || comment && len(name) == 0 || !l.wants(name) {
		return nil
	}
	isRead := len(name) > 0 && utf8.Valid(line)
	if comment {
		isRead = isRead && isType(line, name)
	} else {
		isRead = isRead && isSample(line[len(name):])
	}
	if !isRead {
		l.dropped++
		return nil
	}
	if _, err := l.to.Write(line); err != nil {
		return err //nolint:wrapcheck // it is the caller's connection
	}
	return l.to.WriteByte('\n') //nolint:wrapcheck // as above
}

// wants says whether a name has one of the prefixes. A line without a name is wanted: it is counted as one that cannot be read.
func (l *lines) wants(name []byte) bool {
	if l.keep == nil || len(name) == 0 {
		return true
	}
	if l.name != string(name) {
		l.name, l.wanted = string(name), false
		for _, prefix := range l.keep {
			if strings.HasPrefix(l.name, prefix) {
				l.wanted = true
				break
			}
		}
	}
	return l.wanted
}

// nameOf returns the name at the beginning of a sample, or that in a comment with the type of a metric; empty if there is none.
func nameOf(line []byte) (name []byte, comment bool) {
	if comment = bytes.HasPrefix(line, []byte("#")); comment {
		line, _ = bytes.CutPrefix(line, []byte(typeComment))
	}
	return line[:nameEnd(line, ':')], comment
}

// nameEnd returns how long the name is that b begins with; other may be in it, too.
func nameEnd(b []byte, other byte) int {
	for i, c := range b {
		isLetter := c == '_' || c == other || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !isLetter && (i == 0 || c < '0' || c > '9') {
			return i
		}
	}
	return len(b)
}

// isType says whether a comment is about the name, and names a type that there is.
func isType(line, name []byte) bool {
	kind, ok := strings.CutPrefix(string(line), typeComment+string(name)+" ")
	switch kind {
	case "counter", "gauge", "histogram", "summary", "untyped":
		return ok
	}
	return false
}

// isSample says whether what follows the name of a sample are labels, if there are any, and a value.
func isSample(rest []byte) bool {
	if bytes.HasPrefix(rest, []byte("{")) {
		end := labelsEnd(rest)
		if end < 0 {
			return false
		}
		rest = rest[end:]
	}
	value, isSpaced := bytes.CutPrefix(rest, []byte(" "))
	if !isSpaced || bytes.ContainsAny(value, "pPxX_") { // which only Go reads
		return false
	}
	_, err := strconv.ParseFloat(string(value), 64) // NaN and Inf are values, -nan is none
	return err == nil
}

// labelsEnd returns where the labels end that b begins with, -1 if there is a mistake in them.
func labelsEnd(b []byte) int {
	var names [maxLabels][]byte
	i := 1
	for n := 0; i < len(b) && b[i] != '}'; n++ {
		name := b[i : i+nameEnd(b[i:], '_')]
		i += len(name)
		if n == maxLabels || len(name) == 0 || string(name) == "__name__" || !bytes.HasPrefix(b[i:], []byte(`="`)) {
			return -1
		}
		for _, other := range names[:n] {
			if bytes.Equal(name, other) {
				return -1
			}
		}
		names[n] = name
		length := textLength(b[i+2:])
		if length < 0 {
			return -1
		}
		i += 2 + length + 1 // behind the quotes
		if i < len(b) && b[i] == ',' {
			i++
		} else if i < len(b) && b[i] != '}' {
			return -1
		}
	}
	if i >= len(b) {
		return -1
	}
	return i + 1
}

// textLength returns how long a text is up to the quotes at its end, -1 if there are none, or a backslash escapes what needs no escape.
func textLength(b []byte) int {
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			return i
		case '\\':
			if i++; i >= len(b) || b[i] != '\\' && b[i] != '"' && b[i] != 'n' {
				return -1
			}
		}
	}
	return -1
}

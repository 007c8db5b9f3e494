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
	// maxLine limits a line in bytes: the names of Envoy's resources have at most a few hundred.
	maxLine = 16 << 10
	// maxLabels is more labels than Envoy writes in one line.
	maxLabels = 32
	// maxStatistics limits one scrape of Envoy, in bytes. It suffices for 2,000 services that are all called.
	maxStatistics = 32 << 20
	// chunk is how many bytes are passed on at once.
	chunk = 16 << 10
)

// typeComment begins the only comments that Envoy writes.
const typeComment = "# TYPE "

var errTooMuch = errors.New("envoy's statistics have more than 32 MiB")

// lines passes on the wanted lines of Envoy's statistics, and drops lines that Prometheus cannot parse, since one would
// make it reject the whole page. It buffers one line, and a chunk to be sent.
type lines struct {
	to   *bufio.Writer
	keep []string // name prefixes; nil for all
	// sent means that the caller may have received some lines.
	sent bool
	// dropped counts unparsable lines.
	dropped int

	begun   []byte // an incomplete line
	tooLong bool   // the line exceeds maxLine and is dropped
	read    int
	name    string // name in the previous line, often equal to the next one
	wanted  bool   // whether lines with this name are wanted
}

func newLines(to io.Writer, keep []string) *lines {
	l := &lines{keep: keep}
	l.to = bufio.NewWriterSize(passedOn{to, &l.sent}, chunk)
	return l
}

// passedOn records that data was written.
type passedOn struct {
	io.Writer
	sent *bool
}

// Write implements io.Writer.
func (p passedOn) Write(b []byte) (int, error) {
	*p.sent = true
	return p.Writer.Write(b) //nolint:wrapcheck // the writer's own error
}

// Write implements io.Writer. It returns an error if the caller has disconnected, or if a scrape exceeds its limit.
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

// end sends the rest.
func (l *lines) end() error {
	if err := l.finish(nil); err != nil {
		return err
	}
	return l.to.Flush() //nolint:wrapcheck // the caller's connection
}

// begin stores the beginning of a line.
func (l *lines) begin(part []byte) {
	if l.tooLong || len(l.begun)+len(part) > maxLine {
		l.begun, l.tooLong = l.begun[:0], true
		return
	}
	l.begun = append(l.begun, part...)
}

// finish handles the rest of a line, without its end.
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

// pass passes a line on if it is wanted and valid.
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
		return err //nolint:wrapcheck // the caller's connection
	}
	return l.to.WriteByte('\n') //nolint:wrapcheck // as above
}

// wants reports whether a name has one of the prefixes. A line without a name is wanted, so that it is counted as
// unparsable.
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

// nameOf returns the name at the beginning of a sample, or in a TYPE comment; empty without one.
func nameOf(line []byte) (name []byte, comment bool) {
	if comment = bytes.HasPrefix(line, []byte("#")); comment {
		line, _ = bytes.CutPrefix(line, []byte(typeComment))
	}
	return line[:nameEnd(line, ':')], comment
}

// nameEnd returns the length of the name at the beginning of b. The byte other is also valid in this name.
func nameEnd(b []byte, other byte) int {
	for i, c := range b {
		isLetter := c == '_' || c == other || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !isLetter && (i == 0 || c < '0' || c > '9') {
			return i
		}
	}
	return len(b)
}

// isType reports whether a TYPE comment is about the name and has a valid type.
func isType(line, name []byte) bool {
	kind, ok := strings.CutPrefix(string(line), typeComment+string(name)+" ")
	switch kind {
	case "counter", "gauge", "histogram", "summary", "untyped":
		return ok
	}
	return false
}

// isSample reports whether the text after a sample's name consists of optional labels and a value.
func isSample(rest []byte) bool {
	if bytes.HasPrefix(rest, []byte("{")) {
		end := labelsEnd(rest)
		if end < 0 {
			return false
		}
		rest = rest[end:]
	}
	value, isSpaced := bytes.CutPrefix(rest, []byte(" "))
	if !isSpaced || bytes.ContainsAny(value, "pPxX_") { // valid only for Go's ParseFloat
		return false
	}
	_, err := strconv.ParseFloat(string(value), 64) // NaN and Inf are values, -nan is not
	return err == nil
}

// labelsEnd returns the end of the labels at the beginning of b, or -1 if they are invalid.
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
		i += 2 + length + 1 // after the quotes
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

// textLength returns the length of a text up to its closing quotes, or -1 if they are missing or a backslash escapes an
// invalid character.
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

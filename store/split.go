package store

import "bytes"

// part is the text of one document of a file.
type part struct {
	text []byte
	line int // of its first line within the file, from 1
}

// split cuts a file into its documents, so that each has its own size limit and its own errors. A line that begins with
// "---" or "..." is a marker wherever it stands: YAML forbids it within a document, even in a quoted text.
func split(data []byte) []part {
	var parts []part
	from, line, begun := 0, 1, false // start of the current document, and whether it began with a "---"
	flush := func(to int) {
		if begun || hasContent(data[from:to]) {
			parts = append(parts, part{text: data[from:to], line: line})
		}
	}
	number, at := 0, 0
	for text := range bytes.Lines(data) {
		number++
		next := at + len(text)
		switch {
		case isBegin(text):
			flush(at)
			from, line, begun = at, number, true
		case isEnd(text):
			flush(at)
			from, line, begun = next, number+1, false
		}
		at = next
	}
	flush(len(data))
	return parts
}

func isBegin(line []byte) bool {
	rest, found := bytes.CutPrefix(line, []byte("---"))
	return found && (len(rest) == 0 || bytes.IndexByte([]byte(" \t\r\n"), rest[0]) >= 0)
}

func isEnd(line []byte) bool {
	rest, found := bytes.CutPrefix(line, []byte("..."))
	return found && !hasContent(rest)
}

// hasContent reports whether a text without "---" is a document: one of comments, directives and blank lines is not.
func hasContent(text []byte) bool {
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return true
		}
	}
	return false
}

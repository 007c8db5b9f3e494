package store

import (
	"bytes"
	"encoding/json"
	"slices"
)

// Part is the text of one document of a file.
type Part struct {
	// Text with the "---" before it, if there is one.
	Text []byte
	// Line is the number of its first line within the file, from 1.
	Line int
}

// Split cuts a YAML file into its documents, so that each has its own size limit and its own errors. A line that begins
// with "---" or "..." is a marker wherever it stands: YAML forbids it within a document, even in a quoted text. A byte
// order mark may precede the marker, since each of several concatenated files has one. Blank texts between markers are
// left out. Each item of a JSON array, as written by "sondectl get -o json", is a document.
func Split(data []byte) []Part {
	var parts []Part
	from, line := 0, 1 // start of the current document
	flush := func(to int) {
		if text := data[from:to]; len(bytes.TrimSpace(text)) > 0 {
			parts = append(parts, Part{Text: text, Line: line}.items()...)
		}
	}
	number, at := 0, 0
	for text := range bytes.Lines(data) {
		number++
		next := at + len(text)
		switch {
		case isBegin(text):
			flush(at)
			from, line = at, number
		case isEnd(text):
			flush(at)
			from, line = next, number+1
		}
		at = next
	}
	flush(len(data))
	return parts
}

// items returns the items of a JSON array, and any other part unchanged.
func (p Part) items() []Part {
	text := p.Content()
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")) || !json.Valid(text) {
		return []Part{p}
	}
	var items []Part
	counted, line := 0, p.Line
	decoder := json.NewDecoder(bytes.NewReader(text))
	_, err := decoder.Token() // the bracket
	for err == nil && decoder.More() {
		var item json.RawMessage
		if err = decoder.Decode(&item); err == nil { // the JSON is valid up to here
			end := len(p.Text) - len(text) + int(decoder.InputOffset())
			begin := end - len(item)
			line += bytes.Count(p.Text[counted:begin], []byte("\n"))
			items = append(items, Part{Text: p.Text[begin:end], Line: line})
			counted = begin
		}
	}
	return items
}

// Content returns the text without the "---" before it, and without byte order marks around that.
func (p Part) Content() []byte {
	text := bytes.TrimLeft(p.Text, byteOrderMark)
	if isBegin(text) {
		text = bytes.TrimLeft(text[len("---"):], byteOrderMark+" \t\r\n")
	}
	return text
}

// withoutMark returns the text of a document without the byte order mark after its "---", which the library would take
// for a letter.
func withoutMark(text []byte) []byte {
	if !isBegin(text) {
		return text
	}
	marker, rest, _ := bytes.Cut(text, []byte("\n"))
	if !bytes.HasPrefix(rest, []byte(byteOrderMark)) {
		return text
	}
	return slices.Concat(marker, []byte("\n"), bytes.TrimLeft(rest, byteOrderMark))
}

const byteOrderMark = "\uFEFF"

func isBegin(line []byte) bool {
	rest, found := bytes.CutPrefix(bytes.TrimLeft(line, byteOrderMark), []byte("---"))
	return found && (len(rest) == 0 || bytes.IndexByte([]byte(" \t\r\n"), rest[0]) >= 0)
}

func isEnd(line []byte) bool {
	rest, found := bytes.CutPrefix(bytes.TrimLeft(line, byteOrderMark), []byte("..."))
	return found && !HasContent(rest)
}

// HasContent reports whether a text is more than comments, directives and blank lines.
func HasContent(text []byte) bool {
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(bytes.TrimLeft(line, byteOrderMark)); len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return true
		}
	}
	return false
}

// Package cut shortens external texts for logs, responses and objects.
package cut

import "strings"

// Text returns at most the first most bytes of a text as valid UTF-8: invalid bytes become "?".
func Text(s string, most int) string {
	s = strings.ToValidUTF8(s, "?")
	return strings.ToValidUTF8(s[:min(len(s), most)], "") // the cut may split a character
}

// mark ends a shortened text.
const mark = "…"

// Marked is Text with a mark at the end if something was cut off. The limit includes the mark.
func Marked(s string, most int) string {
	if len(s) <= most {
		return Text(s, most)
	}
	return Text(s, most-len(mark)) + mark
}

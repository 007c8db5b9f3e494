// Package cut shortens texts of others, for logs, answers and objects.
package cut

import "strings"

// Text returns the first bytes of a text, most of them at most, as valid UTF-8: what is not becomes "?".
func Text(s string, most int) string {
	s = strings.ToValidUTF8(s, "?")
	return strings.ToValidUTF8(s[:min(len(s), most)], "") // which may cut a character
}

// mark ends what is not all of a text.
const mark = "…"

// Marked is Text, which ends with a mark if something was cut off. The mark counts.
func Marked(s string, most int) string {
	if len(s) <= most {
		return Text(s, most)
	}
	return Text(s, most-len(mark)) + mark
}

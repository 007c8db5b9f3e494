package store

import (
	"bytes"
	"encoding/json"
	"regexp"
)

// jsonEscape matches what a backslash begins in a text of JSON, two halves of a character (surrogates) as one.
var jsonEscape = regexp.MustCompile(`\\u[dD][89abAB][[:xdigit:]]{2}\\u[dD][c-fC-F][[:xdigit:]]{2}|\\.`)

// fromJSON returns JSON as YAML that the library reads, line by line the same, and any other text as it is. It is of YAML 1.1, which has
// neither \/ nor surrogates, and it takes no tab before the first bracket.
func fromJSON(text []byte) []byte {
	if !json.Valid(Part{Text: text}.Content()) {
		return text
	}
	text = bytes.ReplaceAll(text, []byte("\t"), []byte(" ")) // they are between values: in a text a tab is \t
	return jsonEscape.ReplaceAllFunc(text, func(escape []byte) []byte {
		if string(escape) == `\/` {
			return escape[1:]
		}
		var character string
		if len(escape) > 2 && json.Unmarshal([]byte(`"`+string(escape)+`"`), &character) == nil {
			return []byte(character)
		}
		return escape
	})
}

package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// jsonEscape matches an escape sequence in a JSON string, a surrogate pair as one.
var jsonEscape = regexp.MustCompile(`\\u[dD][89abAB][[:xdigit:]]{2}\\u[dD][c-fC-F][[:xdigit:]]{2}|\\.`)

// fromJSON returns JSON as YAML that the library can read, with the same lines, and any other text unchanged. The
// library's YAML 1.1 has neither \/ nor surrogates, and allows no tab before the first bracket.
func fromJSON(text []byte) []byte {
	if !json.Valid(Part{Text: text}.Content()) {
		return text
	}
	text = bytes.ReplaceAll(text, []byte("\t"), []byte(" ")) // tabs are between values: in a string a tab is \t
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

// isNoText stands for a scalar that is not a string, boolean or integer: no field accepts it.
const isNoText = "0.5"

// toJSON returns a value as JSON with its fields in order. A number beyond all limits becomes the largest int32, so
// that Validate reports the limit.
func toJSON(n *yaml.Node) []byte { return appendJSON(nil, n) }

func appendJSON(to []byte, n *yaml.Node) []byte {
	switch n.Kind {
	case yaml.SequenceNode:
		to = append(to, '[')
		for _, item := range n.Content {
			to = append(appendJSON(to, item), ',')
		}
		return append(bytes.TrimSuffix(to, []byte(",")), ']')
	case yaml.MappingNode:
		to = append(to, '{')
		for _, p := range pairs(n) {
			to = append(appendText(to, p.name()), ':')
			to = append(appendJSON(to, p.value), ',')
		}
		return append(bytes.TrimSuffix(to, []byte(",")), '}')
	}
	switch n.ShortTag() {
	case "!!null":
		return append(to, "null"...)
	case "!!bool":
		return append(to, strings.ToLower(n.Value)...)
	case "!!str":
		return appendText(to, n.Value)
	case "!!int":
		number, err := strconv.ParseInt(n.Value, 10, 64)
		if errors.Is(err, strconv.ErrRange) || strconv.FormatInt(number, 10) == strings.TrimPrefix(n.Value, "+") {
			return strconv.AppendInt(to, min(number, math.MaxInt32), 10)
		}
	}
	return append(to, isNoText...)
}

func appendText(to []byte, text string) []byte {
	quoted, _ := json.Marshal(text) // marshalling a string never fails
	return append(to, quoted...)
}

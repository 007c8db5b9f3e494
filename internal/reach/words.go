package reach

import (
	"regexp"
	"strings"
)

var (
	// statusText is how a gRPC status begins as an error.
	statusText = regexp.MustCompile(`rpc error: code = (\w+) desc = `)
	// connectionText is how gRPC quotes why a connection broke.
	connectionText = regexp.MustCompile(`connection error: desc = "((?:[^"\\]|\\.)*)"`)
)

// shorter has what gRPC says of connections, and the same in fewer words.
var shorter = strings.NewReplacer(
	"transport: Error while dialing: ", "",
	"transport: authentication handshake failed: ", "",
	"closing transport due to: ", "",
	"error reading from server: EOF", "the server has closed the connection",
	"error reading from server: ", "the connection broke: ",
	"error reading server preface: ", "the connection broke: ",
	`, received prior goaway: code: NO_ERROR, debug data: "graceful_stop"`, ": it ends",
	", received prior goaway: code: NO_ERROR", ": it ends",
	"context deadline exceeded", "no answer in time",
	"stream terminated by RST_STREAM with error code: ", "the server has ended the call: ",
)

// Words returns the text of an error that may have a gRPC status in it, without the forms of gRPC: those are for programs.
func Words(err error) string {
	text := err.Error()
	if !statusText.MatchString(text) && !connectionText.MatchString(text) {
		return text
	}
	text = statusText.ReplaceAllStringFunc(text, func(begin string) string {
		if strings.HasSuffix(text, begin) { // a code is all that there is
			return statusText.FindStringSubmatch(begin)[1]
		}
		return ""
	})
	for connectionText.MatchString(text) {
		text = connectionText.ReplaceAllStringFunc(text, func(quoted string) string {
			return strings.ReplaceAll(connectionText.FindStringSubmatch(quoted)[1], `\"`, `"`)
		})
	}
	return shorter.Replace(text)
}

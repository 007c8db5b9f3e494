package reach

import (
	"regexp"
	"strings"
)

var (
	// statusText is the prefix of a gRPC status as an error.
	statusText = regexp.MustCompile(`rpc error: code = (\w+) desc = `)
	// connectionText is gRPC's quote of a connection error.
	connectionText = regexp.MustCompile(`connection error: desc = "((?:[^"\\]|\\.)*)"`)
)

// shorter maps gRPC's phrases about connections to shorter phrases.
var shorter = strings.NewReplacer(
	"transport: Error while dialing: ", "",
	"transport: authentication handshake failed: ", "",
	"closing transport due to: ", "",
	"error reading from server: EOF", "the server has closed the connection",
	"error reading from server: ", "the connection broke: ",
	"error reading server preface: ", "the connection broke: ",
	`, received prior goaway: code: NO_ERROR, debug data: "graceful_stop"`, ": it is shutting down",
	", received prior goaway: code: NO_ERROR", ": it is shutting down",
	"context deadline exceeded", "no answer in time",
	"stream terminated by RST_STREAM with error code: ", "the server has ended the call: ",
)

// Words returns the text of an error without the formatting of an embedded gRPC status.
func Words(err error) string {
	text := err.Error()
	if !statusText.MatchString(text) && !connectionText.MatchString(text) {
		return text
	}
	text = statusText.ReplaceAllStringFunc(text, func(begin string) string {
		if strings.HasSuffix(text, begin) { // a code without a description
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

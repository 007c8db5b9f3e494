package fidelity_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/test/fidelity/cases"
)

// eventClass is a form of the kubelet's events without a mesh, and what it is through it. Words in capitals stand for what eventWords has.
type eventClass struct {
	// what the event is about, for the table.
	what   string
	direct string
	// through and perPort are the event through the mesh; "" if it is the same.
	through, perPort string
}

const (
	status503     = "probe failed: HTTP probe failed with statuscode: 503"
	unexpectedEOF = "probe errored and resulted in failure state: unexpected EOF"
)

// eventClasses are all that the cases have. The first that fits counts.
var eventClasses = []eventClass{
	{what: "Success", direct: "no event"},
	{what: "Warning: a redirect that is not followed", direct: "probe warning: Probe terminated redirects, Response body: TEXT"},
	{what: "HTTP, a status from 400 to 999, or 101", direct: "probe failed: HTTP probe failed with statuscode: STATUS"},
	{what: "HTTP, any other status", direct: "probe failed: HTTP probe failed with statuscode: NUMBER", through: status503, perPort: status503},
	{what: "HTTP, no answer or none that can be read: refused, too late, no TLS …", direct: `probe failed: Get "URL": TEXT`, through: status503, perPort: status503},
	{what: "HTTP, a body that is cut", direct: unexpectedEOF},
	{what: "HTTP, a body that cannot be read: too late, reset, a wrong chunk …", direct: "probe errored and resulted in failure state: TEXT",
		through: unexpectedEOF, perPort: unexpectedEOF},
	{what: "TCP, refused or too late", direct: "probe failed: dial tcp IP:PORT: TEXT", through: status503},
	{what: "TCP, a probe with `host`, which stays as it is", direct: "probe failed: dial TEXT"},
	{what: "gRPC, not serving", direct: `probe failed: service unhealthy (responded with "TEXT")`, through: status503},
	{what: "gRPC, no connection in time", direct: `probe failed: timeout: failed to connect service "IP:PORT" within TIME: context deadline exceeded`,
		through: status503, perPort: "probe failed: timeout: health rpc did not complete within TIME"},
	{what: "gRPC, no answer in time", direct: "probe failed: timeout: health rpc did not complete within TIME", through: status503},
	{what: "gRPC, no health checks", direct: "probe failed: error: this server does not implement the grpc health protocol (grpc.health.v1.Health): TEXT",
		through: status503, perPort: "probe failed: error: this server does not implement the grpc health protocol (grpc.health.v1.Health): "},
	{what: "gRPC, any other error", direct: "probe failed: error: health rpc probe failed: rpc error: code = CODE desc = TEXT",
		through: status503, perPort: "probe failed: error: health rpc probe failed: rpc error: code = CODE desc = "},
	{what: "a hook that fails", direct: "HOOK failed"},
	{what: "a hook by HTTPS to a port of HTTP", direct: "LifecycleHTTPFallback request to HTTPS lifecycle hook IP:PORT got HTTP response, retry with HTTP succeeded",
		through: "no event", perPort: "no event"},
	{what: "a probe that the kubelet cannot make, which stays as it is", direct: "probe errored and resulted in unknown state: TEXT"},
}

// eventWords are what words of an eventClass stand for.
var eventWords = map[string]string{
	"URL": `[^"]*`, "TEXT": `(?s:.*)`, "NUMBER": `-?\d+`, "STATUS": `(?:[4-9]\d\d|101)`, "TIME": `\d+s`, "CODE": `\w+(?:\(\d+\))?`,
	"HOOK": `(?:PostStart|PreStop)Hook`,
}

var eventWord = regexp.MustCompile(`URL|TEXT|NUMBER|STATUS|TIME|CODE|HOOK`)

// pattern matches events of a form. Words have groups.
func pattern(form string) *regexp.Regexp {
	return regexp.MustCompile("^" + eventWord.ReplaceAllStringFunc(regexp.QuoteMeta(form), func(word string) string {
		return "(?P<" + word + ">" + eventWords[word] + ")"
	}) + "$")
}

// expect returns what an event of the class becomes of which the form is given, "" if the event is of another class.
func (c *eventClass) expect(direct, form string) string {
	p := pattern(c.direct)
	groups := p.FindStringSubmatch(direct)
	switch {
	case groups == nil:
		return ""
	case form == "":
		return direct
	}
	return eventWord.ReplaceAllStringFunc(form, func(word string) string { return groups[p.SubexpIndex(word)] })
}

var eventBegins = regexp.MustCompile(`^Warning (?:(?:Unhealthy|ProbeWarning) (?:Liveness|Readiness|Startup) |(?:FailedPostStartHook|FailedPreStopHook) )?`)

// normalise returns an event without its kind, and with words for the pod's address and port.
func normalise(event, ip string) string {
	if strings.Contains(ip, ":") {
		ip = "[" + ip + "]"
	}
	event = regexp.MustCompile(regexp.QuoteMeta(ip)+`:\d+`).ReplaceAllLiteralString(event, "IP:PORT")
	return eventBegins.ReplaceAllString(event, "")
}

// judgeEvents holds the kubelet's events against what eventClasses say.
func (r *result) judgeEvents(c *cases.Case) {
	for i, direct := range r.direct.events {
		if i >= len(r.through.events) || i >= len(r.perPort.events) {
			return // the verdicts differ, too
		}
		at := slices.IndexFunc(eventClasses, func(class eventClass) bool { return class.expect(direct, "") != "" })
		if at < 0 {
			r.wrong = append(r.wrong, fmt.Sprintf("the event %q is in no class of eventClasses", direct))
			continue
		}
		r.classes = append(r.classes, at)
		class := &eventClasses[at]
		through, perPort := class.through, class.perPort
		if c.Unchanged {
			through, perPort = "", ""
		}
		if want := class.expect(direct, through); r.through.events[i] != want {
			r.wrong = append(r.wrong, fmt.Sprintf("event through the mesh: %q, want %q\nwithout a mesh: %q", r.through.events[i], want, direct))
		}
		if want := class.expect(direct, perPort); r.perPort.events[i] != want {
			r.wrong = append(r.wrong, fmt.Sprintf("event in per-port mode: %q, want %q\nwithout a mesh: %q", r.perPort.events[i], want, direct))
		}
	}
}

// eventTable is that of docs/fidelity.md.
func eventTable() string {
	var b strings.Builder
	b.WriteString("| the event is about | without a mesh | through the mesh | per-port mode |\n|---|---|---|---|\n")
	for _, class := range eventClasses {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", class.what, eventCell(class.direct), eventCell(class.through), eventCell(class.perPort))
	}
	return b.String()
}

func eventCell(event string) string {
	if event == "" {
		return "the same"
	}
	return "`" + strings.TrimPrefix(event, "probe ") + "`"
}

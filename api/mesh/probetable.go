package mesh

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// MaxProbeTable is the longest environment string that Linux allows, including the name and '='.
const MaxProbeTable = 131071

// maxProbeID is the longest ID, in bytes: it is sent in a header.
const maxProbeID = 256

// ProbeTable has the probes and hooks of a pod as the user wrote them. The agent answers only these.
type ProbeTable []Probe

// Encode returns the table as JSON for EnvProbeTable. It contains no '$', since the kubelet expands $(NAME) in values
// of variables. It returns an error if the table does not fit into one environment string.
func (t ProbeTable) Encode() (string, error) {
	if t == nil {
		t = ProbeTable{}
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false) // shorter and more readable
	if err := encoder.Encode(t); err != nil {
		return "", fmt.Errorf("encode probe table: %w", err)
	}
	data := strings.ReplaceAll(strings.TrimSuffix(b.String(), "\n"), "$", `\u0024`)
	if size := len(EnvProbeTable) + len("=") + len(data); size > MaxProbeTable {
		return "", fmt.Errorf("encode probe table: the probes of a pod take %d bytes of environment, and %d is the most that one variable may have",
			size, MaxProbeTable)
	}
	return data, nil
}

// ParseProbeTable parses the output of Encode, and the short form of entries with only a handler; "", "null" and "[]"
// are empty tables. It sets the kubelet's defaults. Unknown keys are ignored and returned. The error has one line for
// each invalid value, with its place and what is allowed.
func ParseProbeTable(data string) (table ProbeTable, unknownKeys []string, err error) {
	if strings.TrimSpace(data) == "" {
		return nil, nil, nil
	}
	var entries []json.RawMessage
	if err := json.Unmarshal([]byte(data), &entries); err != nil {
		return nil, nil, fmt.Errorf("parse probe table: %w", ExplainJSON("probes", []byte(data), &entries))
	}
	d := probeDecoder{unknown: map[string]bool{}}
	ids, virtualPorts := map[string]int{}, map[int32]int{}
	var errs []error
	for i, entry := range entries {
		p, problems := d.probe(entry)
		if first, taken := ids[p.ID]; taken && p.ID != "" {
			problems = append(problems, &FieldError{Field: "id", Value: p.ID,
				Allowed: fmt.Sprintf("must be unique, probes[%d] has it too", first)})
		}
		ids[p.ID] = i
		if first, taken := virtualPorts[p.VirtualPort]; taken && p.VirtualPort != 0 {
			problems = append(problems, &FieldError{
				Field: "virtualPort", Value: strconv.Itoa(int(p.VirtualPort)), Bare: true,
				Allowed: fmt.Sprintf("must be unique, probes[%d] has it too", first),
			})
		}
		virtualPorts[p.VirtualPort] = i
		for _, problem := range problems {
			errs = append(errs, fmt.Errorf("probes[%d] (id %q, container %q, type %q): %w",
				i, p.ID, p.Container, p.Type, problem))
		}
		table = append(table, p)
	}
	if len(errs) > 0 {
		return nil, nil, fmt.Errorf("parse probe table: %w", errors.Join(errs...))
	}
	return table, slices.Sorted(maps.Keys(d.unknown)), nil
}

// probeDecoder reads entries key by key: encoding/json accepts keys in any case, and does not return the unknown ones.
type probeDecoder struct {
	unknown map[string]bool
	errs    []error
}

func (d *probeDecoder) probe(data json.RawMessage) (Probe, []error) {
	d.errs = nil
	var p Probe
	var httpGet, tcpSocket, grpc, exec json.RawMessage
	d.object("", data, map[string]any{
		"id": &p.ID, "container": &p.Container, "type": &p.Type, "timeoutSeconds": &p.TimeoutSeconds,
		"virtualPort": &p.VirtualPort,
		"guarded":     &p.Guarded, "failureThreshold": &p.FailureThreshold, "periodSeconds": &p.PeriodSeconds,
		"httpGet": &httpGet, "tcpSocket": &tcpSocket, "grpc": &grpc, "exec": &exec,
	})
	if given(httpGet) {
		p.HTTPGet = d.httpGet(httpGet)
	}
	if given(tcpSocket) {
		p.TCPSocket = &TCPSocketProbe{}
		d.object("tcpSocket.", tcpSocket, map[string]any{"port": &p.TCPSocket.Port})
	}
	if given(grpc) {
		p.GRPC = &GRPCProbe{}
		d.object("grpc.", grpc, map[string]any{"port": &p.GRPC.Port, "service": &p.GRPC.Service, "mode": &p.GRPC.Mode})
	}
	if given(exec) {
		p.Exec = &ExecProbe{}
		d.object("exec.", exec, map[string]any{"command": &p.Exec.Command})
	}
	if d.errs == nil {
		p.SetDefaults()
		d.errs = p.problems()
	}
	return p, d.errs
}

func (d *probeDecoder) httpGet(data json.RawMessage) *HTTPGetProbe {
	var g HTTPGetProbe
	var headers []json.RawMessage
	d.object("httpGet.", data, map[string]any{
		"path": &g.Path, "port": &g.Port, "scheme": &g.Scheme, "protocol": &g.Protocol, "httpHeaders": &headers,
	})
	for i, header := range headers {
		var h HTTPHeader
		d.object(fmt.Sprintf("httpGet.httpHeaders[%d].", i), header, map[string]any{"name": &h.Name, "value": &h.Value})
		g.HTTPHeaders = append(g.HTTPHeaders, h)
	}
	return &g
}

// given reports whether a value is present; null counts as absent, as in Kubernetes.
func given(data json.RawMessage) bool { return len(data) > 0 && string(data) != "null" }

// object reads a JSON object into the variables that fields points to, by key.
func (d *probeDecoder) object(path string, data json.RawMessage, fields map[string]any) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(data, &object); err != nil {
		d.wrong(strings.TrimSuffix(path, "."), data, "must be an object")
		return
	}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		field, ok := fields[key]
		if !ok {
			d.unknown[withoutIndex(path)+key] = true
			continue
		}
		if !given(object[key]) {
			continue
		}
		if err := json.Unmarshal(object[key], field); err != nil {
			d.wrong(path+key, object[key], "must be "+expected(field)+withoutQuotes(object[key], field))
		}
	}
}

// withoutIndex removes the index from a path, so that unknown keys of all elements share one name.
func withoutIndex(path string) string {
	if begin, end := strings.Index(path, "["), strings.Index(path, "]"); begin >= 0 && end > begin {
		return path[:begin] + path[end+1:]
	}
	return path
}

// wrong records a value that cannot be read.
func (d *probeDecoder) wrong(field string, value json.RawMessage, allowed string) {
	if MayBeSecret(field) {
		value = nil
	}
	if field == "" {
		field = "entry"
	}
	f := &FieldError{Field: field, Value: string(value), Allowed: allowed}
	// not a text, and a composed value may contain control characters
	if value != nil && json.Unmarshal(value, &f.Value) != nil {
		f.Value, f.Bare = string(value), value[0] != '{' && value[0] != '['
	}
	f.Value = Shorten(f.Value, maxShown)
	d.errs = append(d.errs, f)
}

// withoutQuotes returns a hint if only the quotes of a text are wrong, otherwise "".
func withoutQuotes(value json.RawMessage, field any) string {
	var text string
	if json.Unmarshal(value, &text) != nil || json.Unmarshal([]byte(text), field) != nil {
		return ""
	}
	return ": write " + text + " without quotes"
}

func expected(field any) string {
	switch field.(type) {
	case *int32:
		return "a number of at most 2147483647"
	case *[]json.RawMessage:
		return "a list"
	case *[]string:
		return "a list of strings"
	case *bool:
		return "true or false"
	}
	return "a string"
}

// SetDefaults sets the API server's defaults (kubernetes pkg/apis/core/v1/defaults.go).
func (p *Probe) SetDefaults() {
	if p.TimeoutSeconds == 0 && !p.Type.IsHook() {
		p.TimeoutSeconds = 1
	}
	if p.Guarded {
		p.FailureThreshold, p.PeriodSeconds = cmp.Or(p.FailureThreshold, 3), cmp.Or(p.PeriodSeconds, 10)
	}
	for h := range p.handlers {
		h.setDefaults()
	}
}

// Validate returns ParseProbeTable's errors for the probe as an entry of a table: FieldErrors, joined. The defaults
// must be set.
func (p *Probe) Validate() error { return errors.Join(p.problems()...) }

// virtualPortProblem returns what is allowed instead of VirtualPort, "" if it is valid.
func (p *Probe) virtualPortProblem() string {
	switch {
	case p.VirtualPort == 0:
		return ""
	case !p.WantsOwnPort():
		return "must not be there: " + p.HandlerName() + " has no port of its own"
	case p.VirtualPort < 0 || p.VirtualPort > 65535:
		return AllowedPort
	case p.VirtualPort == p.Port():
		return "must not be the application's port"
	}
	return ""
}

// guardedProblem returns why the probe cannot be guarded, "" if it can, or need not.
func (p *Probe) guardedProblem() string {
	const refused = "must not be there: "
	switch {
	case !p.Guarded:
		return ""
	case p.Type != ProbeLiveness:
		return refused + "only a probe of type liveness is guarded"
	case p.Container == "":
		return refused + "a restart needs a container, which is not named"
	case p.VirtualPort != 0:
		return refused + "a probe with a virtualPort is not guarded"
	}
	return ""
}

// numberProblems returns errors for invalid optional numbers.
func (p *Probe) numberProblems() []error {
	var errs []error
	for _, n := range []struct {
		field string
		value int32
	}{{"timeoutSeconds", p.TimeoutSeconds}, {"failureThreshold", p.FailureThreshold}, {"periodSeconds", p.PeriodSeconds}} {
		if n.value < 0 {
			errs = append(errs, &FieldError{Field: n.field, Value: strconv.Itoa(int(n.value)), Bare: true,
				Allowed: "must be at least 1"})
		}
	}
	return errs
}

// targetProblem returns an error for an invalid port, or an invalid container of an exec probe, nil if valid.
func (p *Probe) targetProblem() *FieldError {
	port := p.Port()
	switch {
	case p.Exec != nil && !isDNSLabel(p.Container):
		return &FieldError{Field: "container", Value: p.Container, Allowed: "must be the name of a container, for exec"}
	case p.Exec == nil && (port < 1 || port > 65535):
		return &FieldError{Field: p.HandlerName() + ".port", Value: strconv.Itoa(int(port)), Bare: true, Allowed: AllowedPort}
	}
	return nil
}

func (p *Probe) problems() []error {
	var errs []error
	wrong := func(field, value, allowed string) {
		errs = append(errs, &FieldError{Field: field, Value: value, Allowed: allowed})
	}
	if strings.ContainsFunc(p.ID, func(r rune) bool { return r <= ' ' || r > '~' }) || len(p.ID) > maxProbeID {
		wrong("id", p.ID, fmt.Sprintf("must have at most %d visible ASCII characters", maxProbeID))
	}
	if !slices.Contains(probeTypes, p.Type) {
		wrong("type", string(p.Type), "must be startup, liveness, readiness, postStart or preStop")
	}
	errs = append(errs, p.numberProblems()...)
	bare := func(field, value, allowed string) {
		errs = append(errs, &FieldError{Field: field, Value: value, Bare: true, Allowed: allowed})
	}
	if allowed := p.guardedProblem(); allowed != "" {
		bare("guarded", "true", allowed)
	}
	names := p.handlerNames()
	for _, name := range names {
		if name != "httpGet" && p.Type.IsHook() {
			wrong(name, "", "a hook must have httpGet")
		}
	}
	if len(names) != 1 {
		wrong("handler", strings.Join(names, ", "), "must be exactly one of "+allHandlers)
		return errs
	}
	if problem := p.targetProblem(); problem != nil {
		errs = append(errs, problem)
	}
	if allowed := p.virtualPortProblem(); allowed != "" {
		bare("virtualPort", strconv.Itoa(int(p.VirtualPort)), allowed)
	}
	for h := range p.handlers {
		if problem := h.problem(h.name()); problem != nil {
			errs = append(errs, problem)
		}
	}
	return errs
}

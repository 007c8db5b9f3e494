package mesh

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Limits of a ServiceProbe: without them a document could exhaust the agent's memory, or its session.
const (
	minProbeInterval    = 100 * time.Millisecond
	maxProbeInterval    = time.Hour
	maxProbeSeconds     = int32(maxProbeInterval / time.Second)
	maxProbeThreshold   = 1000
	maxProbePath        = 2048 // bytes
	maxProbeService     = 256  // bytes
	maxProbeHeaders     = 32
	maxProbeHeaderBytes = 4096
	maxPort             = 65535
	maxServiceProbes    = 256 // of one Dataplane
)

// AllowedNumber is FieldError.Allowed of an unreadable number.
const AllowedNumber = "must be a whole number of at least 1"

const allowedHandler = "must have exactly one of tcp, httpGet, tcpSocket and grpc"

// formField is a field of one form of a ServiceProbe.
type formField struct {
	name  string
	value int64
	text  string // of the value
	same  string // the equivalent field of the other form
	bare  bool   // the value is a number
}

func (f *formField) check(v *violations, ok bool, path, allowed string) {
	if !ok {
		v.report(&FieldError{Field: path + "." + f.name, Value: f.text, Bare: f.bare, Allowed: allowed})
	}
}

func (p *ServiceProbe) kumaFields() []formField {
	return []formField{
		{"interval", int64(p.Interval), p.Interval.String(), "periodSeconds", false},
		{"timeout", int64(p.Timeout), p.Timeout.String(), "timeoutSeconds", false},
		numberField("unhealthyThreshold", p.UnhealthyThreshold, "failureThreshold"),
		numberField("healthyThreshold", p.HealthyThreshold, "successThreshold"),
	}
}

func (p *ServiceProbe) kubernetesFields() []formField {
	return []formField{
		numberField("periodSeconds", p.PeriodSeconds, "interval"),
		numberField("timeoutSeconds", p.TimeoutSeconds, "timeout"),
		numberField("failureThreshold", p.FailureThreshold, "unhealthyThreshold"),
		numberField("successThreshold", p.SuccessThreshold, "healthyThreshold"),
	}
}

func numberField(name string, n int32, same string) formField {
	return formField{name, int64(n), strconv.Itoa(int(n)), same, true}
}

// countServiceProbes limits the applications that the agent has to probe, and reports whether the limit is kept.
func (n *Networking) countServiceProbes(v *violations) bool {
	probes := 0
	for i := range n.Inbound {
		if n.Inbound[i].ServiceProbe != nil {
			probes++
		}
	}
	v.check(probes <= maxServiceProbes, "networking.inbound", fmt.Sprintf("%d with a serviceProbe", probes),
		fmt.Sprintf("must be at most %d with a serviceProbe: one agent makes all the checks. Leave it out where the application is the same", maxServiceProbes))
	return probes <= maxServiceProbes
}

// validate checks the ServiceProbe, except for its target.
func (p *ServiceProbe) validate(v *violations, path string) {
	handlers := p.handlers()
	if len(handlers) != 1 {
		v.add(path, strings.Join(handlers, ", "), allowedHandler)
		return
	}
	own, other := p.kubernetesFields(), p.kumaFields()
	if p.TCP != nil {
		own, other = other, own
	}
	for _, f := range other {
		f.check(v, f.value == 0, path, fmt.Sprintf("must not be there with %s: its form has %s", handlers[0], f.same))
	}
	for _, f := range own {
		f.validate(v, path)
	}
	if h := p.check().handler(); h != nil {
		path += "." + h.name()
		h.validate(v, path)
		if *h.port() < 1 || *h.port() > maxPort {
			v.number(path+".port", int64(*h.port()), AllowedPort)
		}
	}
}

// validate checks the value of a field of the form that is in use.
func (f *formField) validate(v *violations, path string) {
	switch f.name {
	case "interval":
		f.check(v, f.value >= int64(minProbeInterval) && f.value <= int64(maxProbeInterval), path,
			fmt.Sprintf("must be from %s to %s", Duration(minProbeInterval), Duration(maxProbeInterval)))
	case "timeout":
		f.check(v, f.value >= int64(time.Millisecond) && f.value <= int64(maxProbeInterval), path,
			fmt.Sprintf("must be from %s to %s", Duration(time.Millisecond), Duration(maxProbeInterval)))
	case "periodSeconds", "timeoutSeconds":
		f.check(v, f.value >= 1 && f.value <= int64(maxProbeSeconds), path,
			fmt.Sprintf("must be from 1 to %d", maxProbeSeconds))
	default:
		f.check(v, f.value >= 1 && f.value <= maxProbeThreshold, path, fmt.Sprintf("must be from 1 to %d", maxProbeThreshold))
	}
}

// isPrintable reports whether a text has only visible ASCII characters; it may be empty.
func isPrintable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}

// Package podcause describes why a pod is out of the mesh or gets no traffic, in the same words for events of the
// control plane and for sondectl why.
package podcause

import (
	"fmt"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Reasons of the control plane's events about pods.
const (
	NotInjected      = "NotInjected"
	InjectionWarning = "InjectionWarning"
	JoinRefused      = "JoinRefused"
	JoinWaiting      = "JoinWaiting"
	ListenerRefused  = "ListenerRefused"
	CallsRefused     = "CallsRefused"
	ProbeFailed      = "ProbeFailed"
	RestartGranted   = "RestartGranted"
	RestartHeld      = "RestartHeld"
	RestartUnheld    = "RestartUnheld"
	Draining         = "Draining"
	BeyondBounds     = "BeyondBounds"
)

// NotCounted begins the message about an object that is ignored because its namespace has used up its share of the
// memory.
const NotCounted = "does not count: "

// Refused means that an agent may not join.
func Refused(reason string) string { return "its agent cannot join: " + reason }

// Waits means that an agent asks to join, but cannot yet.
func Waits(reason string) string { return "its agent cannot join yet: " + reason }

// Listener means that Envoy has refused a listener, such as inbound:capture.
func Listener(name, reason string) string {
	return fmt.Sprintf("its Envoy refuses listener %s: %s", name, reason)
}

// Calls means that Envoy refuses calls that would succeed without Envoy.
func Calls(what string) string {
	return "its Envoy refuses calls that would succeed without Envoy: " + what
}

// Drains means that a pod should get no new traffic.
func Drains(why string) string { return "it drains: " + why }

// Held means that the liveness probe of one or several containers fails, and no restart is granted.
func Held(containers, why string) string {
	return fmt.Sprintf("the liveness probe of container %s fails, and it may not restart: %s", containers, why)
}

// Failure is a failing probe or hook. Verdict is the agent's verdict; "" means "failure".
type Failure struct {
	Probe, Verdict, Reason string
}

// String returns the failure in the kubelet's wording.
func (f Failure) String() string {
	what := "probe"
	if mesh.ProbeType(f.Probe).IsHook() {
		what = "hook"
	}
	return fmt.Sprintf("%s %s %s: %s", title(f.Probe), what, verb(f.Verdict), f.Reason)
}

// verb returns a verdict in the kubelet's wording.
func verb(verdict string) string {
	switch verdict {
	case "errored":
		return "errored and was discarded"
	case "warning":
		return "warning"
	default:
		return "failed"
	}
}

func title(word string) string {
	if word == "" {
		return ""
	}
	return strings.ToUpper(word[:1]) + word[1:]
}

// FailureReason returns the reason in a note made by Failure, or by the kubelet in the same form, and false for any
// other note.
func FailureReason(probe, note string) (string, bool) {
	return strings.CutPrefix(note, Failure{Probe: probe}.String())
}

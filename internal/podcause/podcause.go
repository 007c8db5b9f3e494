// Package podcause puts into words what keeps a pod out of the mesh or from its traffic: events of the control plane and sondectl why say the same.
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
	ProbeFailed      = "ProbeFailed"
	RestartGranted   = "RestartGranted"
	RestartHeld      = "RestartHeld"
	Draining         = "Draining"
	BeyondBounds     = "BeyondBounds"
)

// NotCounted begins what is said of an object that has no place in its namespace's share of the memory.
const NotCounted = "does not count: "

// Refused says that an agent may not join.
func Refused(reason string) string { return "its agent may not join: " + reason }

// Waits says that an agent asks to join, and cannot yet.
func Waits(reason string) string { return "its agent cannot join yet: " + reason }

// Listener says that Envoy has refused a listener, such as inbound:capture.
func Listener(name, reason string) string {
	return fmt.Sprintf("its Envoy refuses listener %s: %s", name, reason)
}

// Drains says that a pod should get no new traffic.
func Drains(why string) string { return "it drains: " + why }

// Held says that the liveness probe of a container, or of several, fails, and no restart is granted.
func Held(containers, why string) string {
	return fmt.Sprintf("the liveness probe of container %s fails, and it may not restart: %s", containers, why)
}

// Failure is a probe or hook that fails. Verdict is a word of the agent, "" or "failure" for one that counts.
type Failure struct {
	Probe, Verdict, Reason string
}

// String returns the failure in the kubelet's words.
func (f Failure) String() string {
	what := "probe"
	if mesh.ProbeType(f.Probe).IsHook() {
		what = "hook"
	}
	return fmt.Sprintf("%s %s %s: %s", title(f.Probe), what, verb(f.Verdict), f.Reason)
}

// verb says what a verdict means, in the kubelet's words.
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

// FailureReason returns the reason of a note that Failure has made, or that the kubelet has written in the same form, and false for any other.
func FailureReason(probe, note string) (string, bool) {
	return strings.CutPrefix(note, Failure{Probe: probe}.String())
}

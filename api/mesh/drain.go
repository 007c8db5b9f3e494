package mesh

import "strings"

// MaxDrainReason limits an administrator's reason, in bytes.
const MaxDrainReason = 256

// DrainTerminating is the reason of a Drain that is Terminating.
const DrainTerminating = "the pod is being deleted"

// FrozenReason begins the admin API's reason for an endpoint that stays although Kubernetes removes it.
const FrozenReason = "Frozen: "

// ProbeFailedReason begins the admin API's reason for an inbound whose serviceProbe fails. ProbeWithoutVerdictReason
// begins the reason if its agent reached no verdict.
const (
	ProbeFailedReason         = "application probe failed: "
	ProbeWithoutVerdictReason = "application probe without a verdict: "
)

// RestartingReason means that a pod is restarted in place, by the action RestartAllContainers of a container that has
// exited.
const RestartingReason = "the kubelet restarts all its containers at once, since one has exited by a rule that asks for it"

// DrainText returns the message that something, named what, is drained, with the reason unless it is "".
func DrainText(what, reason string) string {
	if reason == "" {
		return what + " is drained"
	}
	return what + " is drained: " + reason
}

// Drain is why a proxy should get no new traffic. Nil and the zero value mean that it may.
type Drain struct {
	// Terminating means that the pod is being deleted.
	Terminating bool
	// Node is why its node, or the pod on it, will soon be removed, such as "node a: taint
	// ToBeDeletedByClusterAutoscaler".
	Node string
	// Administrator is the text of an administrator, such as "node a: kernel update".
	Administrator string
	// ServesOn is why the proxy still takes traffic, unless it is Terminating: a service would have too few other
	// endpoints.
	ServesOn string
}

// Applies reports whether the proxy should get no new traffic.
func (d *Drain) Applies() bool {
	return d != nil && (d.Terminating || d.Wanted() && d.ServesOn == "")
}

// Wanted reports whether the node or an administrator asks for the drain.
func (d *Drain) Wanted() bool { return d != nil && (d.Node != "" || d.Administrator != "") }

// String returns all reasons, "" without any.
func (d *Drain) String() string {
	if d == nil {
		return ""
	}
	var words []string
	if d.Terminating {
		words = append(words, DrainTerminating)
	}
	for _, reason := range []string{d.Node, d.Administrator} {
		if reason != "" {
			words = append(words, reason)
		}
	}
	if len(words) > 0 && d.ServesOn != "" && !d.Terminating {
		words = append(words, "serves on: "+d.ServesOn)
	}
	return strings.Join(words, "; ")
}

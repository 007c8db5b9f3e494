package mesh

import "strings"

// MaxDrainReason is how many bytes of an administrator's reason are passed on.
const MaxDrainReason = 256

// DrainTerminating is the reason of a Drain that is Terminating.
const DrainTerminating = "the pod is being deleted"

// FrozenReason begins what the admin API says of an endpoint that stays though Kubernetes takes it away.
const FrozenReason = "Frozen: "

// RestartingReason says that a pod is restarted in place, by the action RestartAllContainers of a container that has exited.
const RestartingReason = "the kubelet restarts all its containers at once, since one has exited by a rule that asks for it"

// DrainText says that what is drained, and for which reason; "" is none.
func DrainText(what, reason string) string {
	if reason == "" {
		return what + " is drained"
	}
	return what + " is drained: " + reason
}

// Drain says why a proxy should get no new traffic. Nil and the zero value say that it may.
type Drain struct {
	// Terminating says that the pod is being deleted.
	Terminating bool
	// Node says why its node goes, such as "taint ToBeDeletedByClusterAutoscaler of node a".
	Node string
	// Administrator says what an administrator has written, such as "node a: kernel update".
	Administrator string
	// ServesOn says why the proxy takes traffic nevertheless, unless it is Terminating: a service would have too few others.
	ServesOn string
}

// Applies says whether the proxy is to get no new traffic.
func (d *Drain) Applies() bool {
	return d != nil && (d.Terminating || d.Wanted() && d.ServesOn == "")
}

// Wanted says whether the node or an administrator want it so.
func (d *Drain) Wanted() bool { return d != nil && (d.Node != "" || d.Administrator != "") }

// String returns all reasons, empty if there is none.
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

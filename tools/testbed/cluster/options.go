package cluster

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// DefaultNodeMonitorGracePeriod is long. With Kubernetes' own, an API server that is away for a minute can leave all nodes lost, until their
// kubelets have reported once more: then no Service has an endpoint, those of DNS and of webhooks neither, whatever mesh there is.
const DefaultNodeMonitorGracePeriod = 10 * time.Minute

// Limits of Options.NodeMonitorGracePeriod: kubelets report every 4 s, and the controller-manager looks every 5 s.
const (
	minGrace = 10 * time.Second
	maxGrace = time.Hour
)

// ZoneLabel says which zone a node is in.
const ZoneLabel = "topology.kubernetes.io/zone"

// zonePattern is what the value of a label looks like.
var zonePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

// Options are what can be chosen of a cluster.
type Options struct {
	// Nodes is 1 to 20.
	Nodes int
	// IPFamily is what addresses there are.
	IPFamily IPFamily
	// Zones are those of the nodes, which take them in turn: with a and b, nodes 1 and 3 are in a. Without any, nodes are in no zone.
	Zones []string
	// NodeMonitorGracePeriod is how long the controller-manager hears nothing of a node before the node is Unknown, 10 s to 1 h.
	NodeMonitorGracePeriod time.Duration
}

// families returns the families of addresses, or an error that has everything that is wrong with the options.
func (o Options) families() ([]family, error) {
	families, err := o.IPFamily.families()
	faults := []error{err}
	if o.Nodes < 1 || o.Nodes > maxNodes {
		faults = append(faults, fmt.Errorf("number of nodes %d: it must be 1 to %d", o.Nodes, maxNodes))
	}
	if g := o.NodeMonitorGracePeriod; g < minGrace || g > maxGrace {
		faults = append(faults, fmt.Errorf("node monitor grace period %s: it must be %s to %s", g, minGrace, maxGrace))
	}
	if len(o.Zones) > o.Nodes {
		faults = append(faults, fmt.Errorf("%d zones for %d nodes: there must be a node for each", len(o.Zones), o.Nodes))
	}
	for i, zone := range o.Zones {
		if !zonePattern.MatchString(zone) {
			faults = append(faults, fmt.Errorf("zone %q: it must be the value of a label: at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends", zone))
		}
		if slices.Contains(o.Zones[:i], zone) {
			faults = append(faults, fmt.Errorf("zone %q: it must be given once", zone))
		}
	}
	return families, errors.Join(faults...)
}

// zone returns the zone of a node, which counts from 1, or "".
func (o Options) zone(node int) string {
	if len(o.Zones) == 0 {
		return ""
	}
	return o.Zones[(node-1)%len(o.Zones)]
}

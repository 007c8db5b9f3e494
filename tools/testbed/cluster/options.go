package cluster

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/tools/testbed/binaries"
)

// DefaultNodeMonitorGracePeriod is long. With Kubernetes' own default, an outage of the API server of a minute can make
// all nodes Unknown until their kubelets report again. Then no Service has endpoints, not even DNS and webhooks, with
// any mesh.
const DefaultNodeMonitorGracePeriod = 10 * time.Minute

// Limits of Options.NodeMonitorGracePeriod: kubelets report every 4 s, and the controller-manager checks every 5 s.
const (
	minGrace = 10 * time.Second
	maxGrace = time.Hour
)

// ZoneLabel is the label with a node's zone.
const ZoneLabel = "topology.kubernetes.io/zone"

// zonePattern matches the value of a label.
var zonePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

// Options are the options of a cluster.
type Options struct {
	// Nodes is 1 to 20.
	Nodes int
	// IPFamily selects the address families.
	IPFamily IPFamily
	// Zones are assigned to nodes in turn: with a and b, nodes 1 and 3 are in a. Without zones, nodes are in no zone.
	Zones []string
	// NodeMonitorGracePeriod is the time without a report after which the controller-manager sets a node to Unknown, 10 s
	// to 1 h.
	NodeMonitorGracePeriod time.Duration
	// Kubernetes is the control plane's version.
	Kubernetes binaries.Version
	// NodeKubernetes are versions assigned to nodes in turn, none newer than Kubernetes. Default: Kubernetes.
	NodeKubernetes []binaries.Version
	// FeatureGates, such as Name=true, are set in the API server, which must support all, and in other programs that
	// support them.
	FeatureGates []string
}

// families returns the address families, or an error with all problems of the options.
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
	faults = append(faults, o.checkVersions()...)
	faults = append(faults, checkGates(o.FeatureGates)...)
	return families, errors.Join(faults...)
}

// oldestKubelet is the maximum number of minor versions that a kubelet may be older than the API server.
// Source: Kubernetes' version skew policy.
const oldestKubelet = 3

// checkVersions returns the errors in the nodes' versions.
func (o Options) checkVersions() (faults []error) {
	if n := len(o.NodeKubernetes); n > o.Nodes {
		faults = append(faults, fmt.Errorf("%d versions for %d nodes: there must be a node for each", n, o.Nodes))
	}
	for _, v := range o.NodeKubernetes {
		if behind := o.Kubernetes.Minor() - v.Minor(); behind < 0 || behind > oldestKubelet {
			faults = append(faults, fmt.Errorf("node of Kubernetes %s: with an API server of %s a kubelet must be 1.%d to 1.%d",
				v, o.Kubernetes, o.Kubernetes.Minor()-oldestKubelet, o.Kubernetes.Minor()))
		}
	}
	return faults
}

// version returns the version of a node, which counts from 1.
func (o Options) version(node int) binaries.Version {
	if len(o.NodeKubernetes) == 0 {
		return o.Kubernetes
	}
	return o.NodeKubernetes[(node-1)%len(o.NodeKubernetes)]
}

// zone returns the zone of a node, which counts from 1, or "".
func (o Options) zone(node int) string {
	if len(o.Zones) == 0 {
		return ""
	}
	return o.Zones[(node-1)%len(o.Zones)]
}

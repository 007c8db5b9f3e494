// Package config has what sonde-watchdog is told about a cluster: by a WatchedCluster, or by a file of Gardener's Dependency Watchdog.
package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/partition"
)

// Defaults of Settings that are not in package partition.
const (
	DefaultProbeInterval       = 10 * time.Second
	DefaultInitialDelay        = 30 * time.Second
	DefaultProbeTimeout        = 30 * time.Second
	DefaultJitter              = 0.2
	DefaultThrottled           = 10 * time.Second
	DefaultMonitorGrace        = 40 * time.Second
	DefaultLeaseExpiryFraction = 0.75
	DefaultScaleTimeout        = 30 * time.Second
)

// Cluster is one that is watched, with the defaults of what is not given.
type Cluster struct {
	// Secret has its kubeconfig; "" for the local cluster.
	Secret     string
	Paused     bool
	Probe      Probe
	Judge      partition.Settings
	Dependants []Dependant
}

// Probe says when a cluster is probed.
type Probe struct {
	// Interval between the end of a probe and the next one; Jitter is the share of it that is added at most.
	Interval time.Duration
	Jitter   float64
	// InitialDelay before the first one, and Timeout of each.
	InitialDelay, Timeout time.Duration
	// Throttled is waited after an answer 429 that does not say how long.
	Throttled time.Duration
}

// Dependant is what is scaled.
type Dependant struct {
	Ref      v1alpha1.DependantRef
	Optional bool
	Up, Down Scaling
}

// Scaling says when a dependant is scaled in one direction.
type Scaling struct {
	// Level orders dependants: lower ones come first.
	Level          int32
	Delay, Timeout time.Duration
}

// Self is the Deployment of the watchdog, which must not scale itself.
type Self struct{ Namespace, Name string }

// Of returns what a WatchedCluster of a namespace says, or all violations, joined. Each names the field, its value and what is allowed.
func Of(spec *v1alpha1.WatchedClusterSpec, namespace string, self Self) (*Cluster, error) {
	if err := validate(spec, namespace, self, ofObject); err != nil {
		return nil, err
	}
	s := &spec.Settings
	grace := durationOr(s.KCMNodeMonitorGraceDuration, DefaultMonitorGrace)
	enter := valueOr(s.NodeLeaseFailureFraction, partition.DefaultEnter)
	c := &Cluster{
		Secret: spec.KubeconfigSecretName, Paused: spec.Paused,
		Probe: Probe{
			Interval: durationOr(s.ProbeInterval, DefaultProbeInterval), Jitter: valueOr(s.BackoffJitterFactor, DefaultJitter),
			InitialDelay: durationOr(s.InitialDelay, DefaultInitialDelay), Timeout: durationOr(s.ProbeTimeout, DefaultProbeTimeout),
			Throttled: durationOr(s.BackOffDurationForThrottledRequests, DefaultThrottled),
		},
		Judge: partition.Settings{
			Silence: time.Duration(float64(grace) * valueOr(s.LeaseExpiryFraction, DefaultLeaseExpiryFraction)),
			Enter:   enter, Leave: valueOr(s.NodeLeaseRecoveryFraction, partition.LeaveFor(enter)), Calm: partition.DefaultCalm,
		},
	}
	c.Judge.Quiet = c.Judge.Silence // else kubelets that get through once in each have dependants be scaled up and down in turn
	for i := range spec.Dependants {
		d := &spec.Dependants[i]
		c.Dependants = append(c.Dependants, Dependant{Ref: d.Ref, Optional: d.Optional, Up: scalingOf(d.ScaleUp), Down: scalingOf(d.ScaleDown)})
	}
	return c, nil
}

func scalingOf(s *v1alpha1.ScaleInfo) Scaling {
	return Scaling{Level: s.Level, Delay: durationOr(s.InitialDelay, 0), Timeout: durationOr(s.Timeout, DefaultScaleTimeout)}
}

func durationOr(d *metav1.Duration, otherwise time.Duration) time.Duration {
	if d == nil {
		return otherwise
	}
	return d.Duration
}

func valueOr(v *float64, otherwise float64) float64 {
	if v == nil {
		return otherwise
	}
	return *v
}

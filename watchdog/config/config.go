// Package config reads the configuration of a watched cluster from a WatchedCluster, or from a file of Gardener's
// Dependency Watchdog.
package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/partition"
)

// Defaults of settings outside package partition.
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

// Cluster is the configuration of a watched cluster, with defaults filled in.
type Cluster struct {
	// Secret is the name of the Secret with the cluster's kubeconfig, empty for the local cluster.
	Secret     string
	Paused     bool
	Probe      Probe
	Judge      partition.Settings
	Dependants []Dependant
}

// Probe has the intervals and timeouts of probes.
type Probe struct {
	// Interval between the end of a probe and the next one. Jitter is the maximum share of Interval that is added.
	Interval time.Duration
	Jitter   float64
	// InitialDelay before the first probe, and Timeout of each.
	InitialDelay, Timeout time.Duration
	// Throttled is the delay after a 429 response without Retry-After.
	Throttled time.Duration
}

// Dependant is an object to scale.
type Dependant struct {
	Ref      v1alpha1.DependantRef
	Optional bool
	Up, Down Scaling
}

// Scaling has the order and delays for scaling a dependant in one direction.
type Scaling struct {
	// Level orders dependants: lower levels come first.
	Level          int32
	Delay, Timeout time.Duration
}

// Self is the watchdog's Deployment, which must not scale itself.
type Self struct{ Namespace, Name string }

// Of returns the configuration in a WatchedCluster of a namespace, or all errors, joined. Each names the field, its
// value and the allowed values.
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
			InitialDelay: durationOr(s.InitialDelay, DefaultInitialDelay),
			Timeout:      durationOr(s.ProbeTimeout, DefaultProbeTimeout),
			Throttled:    durationOr(s.BackOffDurationForThrottledRequests, DefaultThrottled),
		},
		Judge: partition.Settings{
			Silence: time.Duration(float64(grace) * valueOr(s.LeaseExpiryFraction, DefaultLeaseExpiryFraction)),
			Enter:   enter, Leave: valueOr(s.NodeLeaseRecoveryFraction, partition.LeaveFor(enter)), Calm: partition.DefaultCalm,
		},
	}
	// otherwise kubelets that occasionally get through would scale dependants up and down repeatedly
	c.Judge.Quiet = c.Judge.Silence
	for i := range spec.Dependants {
		d := &spec.Dependants[i]
		c.Dependants = append(c.Dependants, Dependant{Ref: d.Ref, Optional: d.Optional, Up: scalingOf(d.ScaleUp),
			Down: scalingOf(d.ScaleDown)})
	}
	return c, nil
}

func scalingOf(s *v1alpha1.ScaleInfo) Scaling {
	return Scaling{Level: s.Level, Delay: durationOr(s.InitialDelay, 0),
		Timeout: durationOr(s.Timeout, DefaultScaleTimeout)}
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

package gardener

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// shootVersion and shootKind are required in spec.shoot.
const (
	shootVersion = "core.gardener.cloud/v1beta1"
	shootKind    = "Shoot"
)

// Operations on a shoot, and their states.
const (
	operationCreate    = "Create"
	operationReconcile = "Reconcile"
	operationDelete    = "Delete"
	operationMigrate   = "Migrate"
	operationLive      = "LiveMigrate"
	operationRestore   = "Restore"
	stateSucceeded     = "Succeeded"
)

var operations = []string{operationCreate, operationReconcile, operationDelete, operationMigrate, operationLive,
	operationRestore}

// shoot has the fields of Gardener's Shoot that decide whether and how to watch it.
type shoot struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		DeletionTimestamp *metav1.Time `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec struct {
		Hibernation *struct {
			Enabled *bool `json:"enabled"`
		} `json:"hibernation"`
		Kubernetes struct {
			KubeControllerManager *struct {
				NodeMonitorGracePeriod *metav1.Duration `json:"nodeMonitorGracePeriod"`
			} `json:"kubeControllerManager"`
		} `json:"kubernetes"`
		Provider struct {
			Workers []struct{} `json:"workers"`
		} `json:"provider"`
	} `json:"spec"`
	Status struct {
		Hibernated    bool `json:"hibernated"`
		LastOperation *struct {
			Type  string `json:"type"`
			State string `json:"state"`
		} `json:"lastOperation"`
	} `json:"status"`
}

// Halt is why a shoot is not watched, as the reason of a condition; "" if it is watched.
type Halt string

// The reasons.
const (
	Deleted    Halt = "ShootDeleted"    // being deleted, or its Cluster no longer exists
	Hibernated Halt = "ShootHibernated" // or about to be
	Waking     Halt = "ShootWaking"
	Migrating  Halt = "ShootMigrating" // being migrated to another seed, and not restored there yet
	Creating   Halt = "ShootCreating"
	Workerless Halt = "ShootWorkerless"
	Unreadable Halt = "ShootUnreadable"
	// Unfollowed means that the watchdog does not follow Clusters, so the shoot's state is unknown.
	Unfollowed Halt = "ShootUnfollowed"
)

// texts explain each reason to an operator.
var texts = map[Halt]string{
	Deleted:    "the shoot is being deleted, or has been",
	Hibernated: "the shoot is hibernated, or about to be",
	Waking:     "the shoot is waking up from hibernation",
	Migrating:  "the shoot is being migrated to another seed, or has not been restored there yet",
	Creating:   "the shoot has not been created yet",
	Workerless: "the shoot has no workers",
	Unreadable: "the shoot cannot be read",
	Unfollowed: "the watchdog runs without --gardener, and cannot know whether the shoot is hibernated",
}

// Text explains the reason to an operator.
func (h Halt) Text() string { return texts[h] }

// Record is the part of a Cluster that the watchdog stores.
type Record struct {
	UID types.UID
	// Halt is why the shoot is not watched, "" if it is. Detail is the error of an Unreadable shoot.
	Halt   Halt
	Detail string
	// MonitorGrace is --node-monitor-grace-period of the shoot's controller-manager, 0 if unset.
	MonitorGrace time.Duration
}

// RecordOf returns the record of a Cluster. It never omits a Cluster, since its WatchedCluster may exist.
func RecordOf(c *Cluster) (Record, bool) {
	r := Record{UID: c.UID}
	s, err := decode(c.Spec.Shoot.Raw)
	switch {
	case c.DeletionTimestamp != nil:
		r.Halt = Deleted
	case err != nil:
		r.Halt, r.Detail = Unreadable, mesh.Shorten(err.Error(), maxDetail)
	default:
		r.Halt = s.halt()
		if m := s.Spec.Kubernetes.KubeControllerManager; m != nil && m.NodeMonitorGracePeriod != nil {
			r.MonitorGrace = m.NodeMonitorGracePeriod.Duration
		}
	}
	return r, true
}

// Limits, in bytes, of the message about an unreadable shoot and of a value in it.
const (
	maxDetail = 1000
	maxShown  = 100
)

// decode reads a shoot. Unknown fields are ignored; the fields read must have the right type.
func decode(raw []byte) (*shoot, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, &mesh.FieldError{Field: "spec.shoot", Allowed: "must be a Shoot"}
	}
	var s shoot
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, mesh.ExplainJSON("spec.shoot", raw, &s)
	}
	if s.APIVersion != shootVersion {
		return nil, &mesh.FieldError{Field: "spec.shoot.apiVersion", Value: mesh.Shorten(s.APIVersion, maxShown),
			Allowed: "must be " + shootVersion}
	}
	if s.Kind != shootKind {
		return nil, &mesh.FieldError{Field: "spec.shoot.kind", Value: mesh.Shorten(s.Kind, maxShown),
			Allowed: "must be " + shootKind}
	}
	if m := s.Spec.Kubernetes.KubeControllerManager; m != nil && m.NodeMonitorGracePeriod != nil &&
		m.NodeMonitorGracePeriod.Duration <= 0 {
		return nil, &mesh.FieldError{
			Field: "spec.shoot.spec.kubernetes.kubeControllerManager.nodeMonitorGracePeriod",
			Value: m.NodeMonitorGracePeriod.Duration.String(), Allowed: "must be more than 0s",
		}
	}
	if o := s.Status.LastOperation; o != nil && !slices.Contains(operations, o.Type) {
		return nil, &mesh.FieldError{Field: "spec.shoot.status.lastOperation.type", Value: mesh.Shorten(o.Type, maxShown),
			Allowed: "must be one of " + strings.Join(operations, ", ")}
	}
	return &s, nil
}

// halt decides whether to watch the shoot. The Dependency Watchdog has different rules for starting and for stopping
// probes, so its result depends on the past. Here the same rule is used for both, so that a new leader and a running
// one decide the same.
func (s *shoot) halt() Halt {
	hibernated := s.Spec.Hibernation != nil && s.Spec.Hibernation.Enabled != nil && *s.Spec.Hibernation.Enabled
	operation := s.Status.LastOperation
	switch {
	case s.Metadata.DeletionTimestamp != nil:
		return Deleted
	case hibernated:
		return Hibernated
	case len(s.Spec.Provider.Workers) == 0:
		return Workerless
	case operation == nil:
		return Creating
	}
	done := operation.State == stateSucceeded
	switch operation.Type {
	case operationDelete:
		return Deleted
	case operationMigrate, operationLive:
		return Migrating
	case operationRestore:
		if !done {
			return Migrating
		}
	case operationCreate:
		if !done {
			return Creating
		}
	}
	if s.Status.Hibernated {
		return Waking
	}
	return ""
}

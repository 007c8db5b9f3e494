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

// shootVersion and shootKind are what spec.shoot has to be.
const (
	shootVersion = "core.gardener.cloud/v1beta1"
	shootKind    = "Shoot"
)

// Operations on a shoot, and their state.
const (
	operationCreate    = "Create"
	operationReconcile = "Reconcile"
	operationDelete    = "Delete"
	operationMigrate   = "Migrate"
	operationLive      = "LiveMigrate"
	operationRestore   = "Restore"
	stateSucceeded     = "Succeeded"
)

var operations = []string{operationCreate, operationReconcile, operationDelete, operationMigrate, operationLive, operationRestore}

// shoot has the fields of Gardener's Shoot that say whether it is to be watched, and how.
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

// Halt is why a shoot is not watched. It is the reason of a condition; "" if it is watched.
type Halt string

// The reasons.
const (
	Deleted    Halt = "ShootDeleted"    // it is being deleted, or its Cluster has gone
	Hibernated Halt = "ShootHibernated" // or about to be
	Waking     Halt = "ShootWaking"
	Migrating  Halt = "ShootMigrating" // to another seed, and not restored there yet
	Creating   Halt = "ShootCreating"
	Workerless Halt = "ShootWorkerless"
	Unreadable Halt = "ShootUnreadable"
	// Unfollowed is that the watchdog does not follow Clusters, and so cannot know any of these.
	Unfollowed Halt = "ShootUnfollowed"
)

// texts say the same to an operator.
var texts = map[Halt]string{
	Deleted:    "the shoot is being deleted, or has been",
	Hibernated: "the shoot is hibernated, or about to be",
	Waking:     "the shoot wakes up from hibernation",
	Migrating:  "the shoot is being migrated to another seed, or has not been restored there yet",
	Creating:   "the shoot has not been created yet",
	Workerless: "the shoot has no workers",
	Unreadable: "the shoot cannot be read",
	Unfollowed: "it is about a shoot, and the watchdog runs without --gardener: whether the shoot is hibernated is not known",
}

// Text says it to an operator.
func (h Halt) Text() string { return texts[h] }

// Record is what is kept of a Cluster.
type Record struct {
	UID types.UID
	// Halt is why the shoot is not watched, "" if it is, and Detail what is wrong with one that is Unreadable.
	Halt   Halt
	Detail string
	// MonitorGrace is --node-monitor-grace-period of the shoot's controller-manager, 0 if the shoot does not say.
	MonitorGrace time.Duration
}

// RecordOf returns what is kept of a Cluster. None is left out: its WatchedCluster may be there.
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

// Limits of what is said of a shoot that cannot be read, and of a value in it, in bytes.
const (
	maxDetail = 1000
	maxShown  = 100
)

// decode reads a shoot. Unknown fields are left to Gardener, those that are needed have to be of their type.
func decode(raw []byte) (*shoot, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, &mesh.FieldError{Field: "spec.shoot", Allowed: "must be a Shoot"}
	}
	var s shoot
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, mesh.ExplainJSON("spec.shoot", raw, &s)
	}
	if s.APIVersion != shootVersion {
		return nil, &mesh.FieldError{Field: "spec.shoot.apiVersion", Value: mesh.Shorten(s.APIVersion, maxShown), Allowed: "must be " + shootVersion}
	}
	if s.Kind != shootKind {
		return nil, &mesh.FieldError{Field: "spec.shoot.kind", Value: mesh.Shorten(s.Kind, maxShown), Allowed: "must be " + shootKind}
	}
	if m := s.Spec.Kubernetes.KubeControllerManager; m != nil && m.NodeMonitorGracePeriod != nil && m.NodeMonitorGracePeriod.Duration <= 0 {
		return nil, &mesh.FieldError{
			Field: "spec.shoot.spec.kubernetes.kubeControllerManager.nodeMonitorGracePeriod", Value: m.NodeMonitorGracePeriod.Duration.String(), Allowed: "must be more than 0s",
		}
	}
	if o := s.Status.LastOperation; o != nil && !slices.Contains(operations, o.Type) {
		return nil, &mesh.FieldError{Field: "spec.shoot.status.lastOperation.type", Value: mesh.Shorten(o.Type, maxShown), Allowed: "must be one of " + strings.Join(operations, ", ")}
	}
	return &s, nil
}

// halt says whether the shoot is to be watched. The Dependency Watchdog has two rules, when to start a probe and when to end it, and what runs goes on
// between them; here both are one, so that a leader that begins and one that goes on do the same.
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

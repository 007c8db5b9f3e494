// Package events writes events about objects, which `kubectl describe` shows.
package events

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	eventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	kevents "k8s.io/client-go/tools/events"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// Reporter is the reporting controller of the control plane's events.
const Reporter = mesh.OwnPrefix + "control-plane"

// maxNote is the maximum length of a note in bytes: the API server rejects events with a longer one.
const maxNote = 1024

// Event is about one object.
type Event struct {
	// Kind, Namespace, Name and UID identify the object. APIVersion, such as apps/v1, is the version of its kind.
	Kind, APIVersion, Namespace, Name string
	UID                               types.UID
	// FieldPath is the affected part of the object, such as spec.containers{app}, or "".
	FieldPath string
	// Reason and Action must have few different values: events about one object with equal Reason and Action become a
	// series, which keeps its first note.
	Reason, Action string
	// Note is for people. It is cut at 1,024 bytes.
	Note string
	// Normal events have type Normal instead of Warning.
	Normal bool
}

// Recorder writes events. Its methods may be called from any goroutine.
type Recorder struct {
	recorder    kevents.EventRecorder
	broadcaster kevents.EventBroadcaster
	limits      *limits
	log         *slog.Logger
}

// New returns a Recorder of the control plane. The caller must call its Run.
func New(client eventsv1.EventsV1Interface, log *slog.Logger) *Recorder {
	return NewAs(Reporter, client, log)
}

// NewAs returns a Recorder of another program. The caller must call its Run.
func NewAs(reporter string, client eventsv1.EventsV1Interface, log *slog.Logger) *Recorder {
	// Not NewEventBroadcasterAdapter: it asks the API server for its event APIs first, and without an answer would
	// never write events.
	b := kevents.NewBroadcaster(&kevents.EventSinkImpl{Interface: client})
	return &Recorder{broadcaster: b, recorder: b.NewRecorder(scheme.Scheme, reporter), limits: newLimits(log), log: log}
}

// Run writes events until ctx ends, and then returns nil.
func (r *Recorder) Run(ctx context.Context) error {
	defer r.broadcaster.Shutdown()
	if err := r.broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("record events: %w", err)
	}
	<-ctx.Done()
	return nil
}

// Record queues an event, unless there are too many. It returns at once.
func (r *Recorder) Record(e Event) {
	if !r.limits.allow(&e) {
		return
	}
	about := &corev1.ObjectReference{
		Kind: e.Kind, APIVersion: e.APIVersion, Namespace: e.Namespace, Name: e.Name, UID: e.UID, FieldPath: e.FieldPath,
	}
	kind := corev1.EventTypeWarning
	if e.Normal {
		kind = corev1.EventTypeNormal
	}
	r.recorder.Eventf(about, nil, kind, e.Reason, e.Action, "%s", cut.Marked(e.Note, maxNote))
}

// LastSeen returns the last time of an event, whichever API wrote it.
func LastSeen(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	}
	return e.EventTime.Time
}

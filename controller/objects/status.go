package objects

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// maxMessage is the longest message of a condition that the API server takes (metav1.Condition).
const maxMessage = 32768

// statusRetry is when a status that could not be written is tried again.
const statusRetry = 5 * time.Second

// RunStatus writes the Accepted condition of objects until ctx ends, and then returns nil. It is for one replica at a time. One that
// did not lead before keeps what has to be looked at, so it may begin at any time.
func (s *Objects) RunStatus(ctx context.Context) error {
	retry := time.NewTicker(statusRetry)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-retry.C:
		}
		s.o.Loop.Begin()
		s.mu.Lock()
		refs := slices.Collect(maps.Keys(s.unwritten))
		clear(s.unwritten)
		s.mu.Unlock()
		for _, ref := range refs {
			s.o.Loop.Beat() // each of them may wait for the API server
			if err := s.writeStatus(ctx, ref); err != nil {
				s.o.Logger.WarnContext(ctx, "status write failed, retrying",
					"resource", ref.resource, "namespace", ref.Namespace, "name", ref.Name, "err", err)
				s.mu.Lock()
				s.unwritten[ref] = struct{}{}
				s.mu.Unlock()
			}
		}
		s.o.Loop.End()
	}
}

func (s *Objects) writeStatus(ctx context.Context, ref reference) error {
	r := s.get(ref)
	if r == nil {
		return nil
	}
	want := s.conditionOf(ref, r)
	if is := r.accepted; is != nil && is.Status == want.Status && is.Reason == want.Reason && is.Message == want.Message &&
		is.ObservedGeneration == want.ObservedGeneration {
		return nil
	}
	want.LastTransitionTime = metav1.Now()
	if r.accepted != nil && r.accepted.Status == want.Status {
		want.LastTransitionTime = r.accepted.LastTransitionTime
	}
	patch, err := json.Marshal(map[string]any{"status": v1alpha1.Status{Conditions: []metav1.Condition{want}}})
	if err != nil {
		return fmt.Errorf("encode status: %w", err)
	}
	err = s.client.Patch(types.MergePatchType).Resource(ref.resource).NamespaceIfScoped(ref.Namespace, ref.Namespace != "").
		Name(ref.Name).SubResource("status").Body(patch).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// conditionOf returns the Accepted condition that an object should have.
func (s *Objects) conditionOf(ref reference, r *record) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAccepted, ObservedGeneration: r.generation,
	}
	refuse := func(reason, message string) {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reason, cut.Text(message, maxMessage)
	}
	o, err := s.resolve(ref, r)
	switch {
	case err != nil:
		refuse(v1alpha1.ReasonInvalid, inOneLine(err))
	case !s.meshKnown(o):
		refuse(v1alpha1.ReasonUnknownMesh, fmt.Sprintf("mesh %q does not exist", o.Key().Mesh))
	}
	return c
}

func (s *Objects) meshKnown(o mesh.Object) bool {
	name := o.Key().Mesh
	if name == "" {
		return true // it is a Mesh
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names[name]
}

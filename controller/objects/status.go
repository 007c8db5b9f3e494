package objects

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// maxMessage bounds the message of a condition or problem: each replica keeps one per object.
const maxMessage = 4096

// statusRetry is the pause before a failed status write is retried.
const statusRetry = 5 * time.Second

// RunStatus writes the Accepted condition of objects until ctx ends, and then returns nil. Only one replica may run it.
// Every replica queues the objects to check, so any replica can start RunStatus at any time.
func (s *Objects) RunStatus(ctx context.Context) error {
	retry := time.NewTicker(statusRetry)
	defer retry.Stop()
	failed := map[reference]struct{}{} // set aside until the next retry, so that they do not delay others
	tryAgain := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		maps.Copy(s.unwritten, failed)
		clear(failed)
	}
	defer tryAgain() // for the next leader in this process
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-retry.C:
			tryAgain()
		}
		s.o.Loop.Begin()
		s.mu.Lock()
		refs := s.takeUnwritten()
		s.mu.Unlock()
		for _, ref := range refs {
			s.o.Loop.Beat() // each write may wait for the API server
			if err := s.writeStatus(ctx, ref); err != nil {
				s.o.Logger.WarnContext(ctx, "status write failed, retrying",
					"resource", ref.resource, "namespace", ref.Namespace, "name", ref.Name, "err", err)
				failed[ref] = struct{}{}
			}
		}
		s.o.Loop.End()
	}
}

// writtenAtOnce is the number of statuses in one batch, before namespaces take turns again.
const writtenAtOnce = 50

// takeUnwritten takes the next batch of objects: first one object of each namespace, then a second of each, and so on,
// so that no namespace waits for all objects of another. The caller holds mu.
func (s *Objects) takeUnwritten() []reference {
	byNamespace := map[string][]reference{}
	for ref := range s.unwritten {
		byNamespace[ref.Namespace] = append(byNamespace[ref.Namespace], ref)
	}
	var refs []reference
	for round := 0; len(refs) < min(len(s.unwritten), writtenAtOnce); round++ {
		for _, of := range byNamespace { // in a random order
			if round < len(of) && len(refs) < writtenAtOnce {
				refs = append(refs, of[round])
			}
		}
	}
	for _, ref := range refs {
		delete(s.unwritten, ref)
	}
	if len(s.unwritten) > 0 {
		s.wake.Set()
	}
	return refs
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
	err = s.client.Patch(types.MergePatchType).Resource(ref.resource).NamespaceIfScoped(ref.Namespace,
		ref.Namespace != "").
		Name(ref.Name).SubResource("status").Body(patch).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// conditionOf returns the Accepted condition for an object.
func (s *Objects) conditionOf(ref reference, r *record) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAccepted,
		ObservedGeneration: r.generation,
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
	case exceeded(o) != nil:
		refuse(v1alpha1.ReasonInvalid, inOneLine(exceeded(o)))
	default:
		c.Message = cut.Text(warningsOf(o), maxMessage)
	}
	return c
}

// warningsOf returns the warnings about a valid object, "" for none. The status has them too, because a pipeline does
// not show the webhook's warnings.
func warningsOf(o mesh.Object) string {
	warner, ok := o.(mesh.Warner)
	if !ok {
		return ""
	}
	var all []string
	for _, w := range warner.Warnings() {
		all = append(all, w.Error())
	}
	return strings.Join(all, "; ")
}

func (s *Objects) meshKnown(o mesh.Object) bool {
	name := o.Key().Mesh
	if name == "" {
		return true // r is a Mesh
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names[name] || s.o.Recorded()[name] != nil
}

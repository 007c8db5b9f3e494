package restarts

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/watch"
)

// record returns what is kept of a pod. A value of an annotation that is none leaves in effect what this replica has read before, so it looks that up.
func (c *cluster) record(o *corev1.Pod) (pod, bool) {
	p, is := readPod(o)
	if p.guarded() {
		before := c.pods.Get(watch.Key{Namespace: o.Namespace, Name: o.Name})
		if before != nil && before.uid != p.uid { // an earlier one of its name, as in a StatefulSet
			before = nil
		}
		p.readAnnotations(o.Annotations, before)
	}
	return p, is
}

// wrongAnnotation is one of a running guarded pod that is not followed. A webhook refuses it when the pod is made, and is not asked later.
type wrongAnnotation struct {
	key, value string
	why        string // what is allowed, and what holds instead
}

// readAnnotations takes from the annotations of a guarded pod what is asked of it while it runs. before is what was kept of it, nil for nothing.
func (p *pod) readAnnotations(annotations map[string]string, before *pod) {
	if text, is := annotations[mesh.AnnotationLiveness]; is {
		asked, err := mesh.ParseLiveness(text)
		p.Suspended, p.Native = asked == mesh.LivenessSuspended, asked == mesh.LivenessNative
		if err != nil {
			if before != nil {
				p.Suspended, p.Native = before.Suspended, before.Native
			}
			p.notFollowed(mesh.AnnotationLiveness, text, err.Error()+"; "+p.inEffect())
		}
	}
	if text := annotations[mesh.AnnotationGuardedLiveness]; text != "enabled" {
		p.notFollowed(mesh.AnnotationGuardedLiveness, text, "must be enabled as long as this pod runs, which was made with guarded liveness probes: they stay guarded; "+
			mesh.AnnotationLiveness+": "+string(mesh.LivenessNative)+" leaves them to the kubelet")
	}
}

func (p *pod) notFollowed(key, value, why string) {
	p.wrong = append(p.wrong, wrongAnnotation{key, mesh.Shorten(value, maxShown), why})
}

// maxShown limits a value that is kept and shown, in bytes: all annotations of a pod may have 256 KiB.
const maxShown = 100

// inEffect says what holds while the value of mesh.AnnotationLiveness is none.
func (p *pod) inEffect() string {
	switch {
	case p.Suspended:
		return "what it was before stays in effect: " + string(mesh.LivenessSuspended)
	case p.Native:
		return "what it was before stays in effect: " + string(mesh.LivenessNative)
	}
	return "the liveness probes stay guarded, as without it"
}

// wrongOf is a wrongAnnotation of a pod.
type wrongOf struct {
	pod watch.Key
	uid string
	wrongAnnotation
}

func (w wrongOf) err() error {
	return &mesh.FieldError{Field: "metadata.annotations[" + strconv.Quote(w.key) + "]", Value: w.value, Allowed: w.why}
}

func (w wrongOf) event() events.Event {
	return events.Event{
		Kind: "Pod", APIVersion: "v1", Namespace: w.pod.Namespace, Name: w.pod.Name, UID: types.UID(w.uid), FieldPath: "metadata.annotations{" + w.key + "}",
		Reason: "BadAnnotation", Action: "Guard", Note: w.err().Error(),
	}
}

// wrongAnnotations are those that a reader has seen. The zero value has seen none.
type wrongAnnotations struct{ seen map[wrongOf]bool }

// fresh returns those that there were not at the last call.
func (a *wrongAnnotations) fresh(c *cluster) []wrongOf {
	now := map[wrongOf]bool{}
	var fresh []wrongOf
	for _, key := range c.pods.Keys() {
		p := c.pods.Get(key)
		if p == nil {
			continue // it has gone meanwhile
		}
		for _, w := range p.wrong {
			of := wrongOf{key, p.uid, w}
			if now[of] = true; !a.seen[of] {
				fresh = append(fresh, of)
			}
		}
	}
	a.seen = now
	return fresh
}

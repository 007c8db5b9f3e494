package restarts

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/watch"
)

// record returns the record of a pod. If an annotation is invalid, it keeps the value of the previous record in effect.
func (c *cluster) record(o *corev1.Pod) (pod, bool) {
	p, is := readPod(o)
	if p.guarded() {
		before := c.pods.Get(watch.Key{Namespace: o.Namespace, Name: o.Name})
		if before != nil && before.uid != p.uid { // an earlier pod of the same name, as in a StatefulSet
			before = nil
		}
		p.readAnnotations(o.Annotations, before)
	}
	return p, is
}

// wrongAnnotation is an invalid annotation of a running guarded pod. The webhook rejects it in new pods, but does not
// check later changes.
type wrongAnnotation struct {
	key, value string
	why        string // the allowed values, and the value in effect
}

// readAnnotations reads the annotations of a guarded pod that have effect while it runs. before is the previous record
// of the pod, or nil.
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
		p.notFollowed(mesh.AnnotationGuardedLiveness, text,
			"must be enabled while this pod runs: it was created with guarded liveness probes, which stay guarded; "+
				mesh.AnnotationLiveness+": "+string(mesh.LivenessNative)+" leaves them to the kubelet")
	}
}

func (p *pod) notFollowed(key, value, why string) {
	p.wrong = append(p.wrong, wrongAnnotation{key, mesh.Shorten(value, maxShown), why})
}

// maxShown bounds a value that is kept and shown, in bytes: the annotations of a pod may have 256 KiB.
const maxShown = 100

// inEffect describes the behaviour while the value of mesh.AnnotationLiveness is invalid.
func (p *pod) inEffect() string {
	switch {
	case p.Suspended:
		return "the previous value stays in effect: " + string(mesh.LivenessSuspended)
	case p.Native:
		return "the previous value stays in effect: " + string(mesh.LivenessNative)
	}
	return "the liveness probes stay guarded, as without the annotation"
}

// wrongOf is a wrongAnnotation with its pod.
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
		Kind: "Pod", APIVersion: "v1", Namespace: w.pod.Namespace, Name: w.pod.Name, UID: types.UID(w.uid),
		FieldPath: "metadata.annotations{" + w.key + "}",
		Reason:    "BadAnnotation", Action: "Guard", Note: w.err().Error(),
	}
}

// wrongAnnotations remembers which invalid annotations were reported. The zero value is ready to use.
type wrongAnnotations struct{ seen map[wrongOf]bool }

// fresh returns the invalid annotations that did not exist at the last call.
func (a *wrongAnnotations) fresh(c *cluster) []wrongOf {
	now := map[wrongOf]bool{}
	var fresh []wrongOf
	for _, key := range c.pods.Keys() {
		p := c.pods.Get(key)
		if p == nil {
			continue // deleted meanwhile
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

package webhook

import (
	"encoding/json"
	"io"

	corev1 "k8s.io/api/core/v1"
	kjson "k8s.io/apimachinery/pkg/util/json"
)

// WithRandom returns options with another source of hook IDs.
func (o Options) WithRandom(r io.Reader) Options {
	o.random = r
	return o
}

// HasRandom reports whether the options set the source of hook IDs.
func (o Options) HasRandom() bool { return o.random != nil }

// AgainProbeContext parses the annotation with liveness probes, and encodes it again.
func AgainProbeContext(text string) (string, error) {
	c, err := parseProbeContext(text)
	if err != nil {
		return "", err
	}
	return c.encode()
}

// InjectIn injects a pod in a namespace, like an admission.
func InjectIn(pod *corev1.Pod, ns *Namespace, o Options) (*corev1.Pod, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	document, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	var d podDocument
	if err := kjson.Unmarshal(document, &d); err != nil {
		return nil, err
	}
	in, err := d.inject(ns, &o)
	if err != nil {
		return nil, err
	}
	if document, err = in.patch.apply(document); err != nil {
		return nil, err
	}
	return DecodePod(document)
}

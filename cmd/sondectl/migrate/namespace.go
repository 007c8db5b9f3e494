package migrate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	kjson "k8s.io/apimachinery/pkg/util/json"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

func (c *Cluster) addNamespace(body []byte) error {
	var ns corev1.Namespace
	if err := kjson.Unmarshal(body, &ns); err != nil {
		return mesh.ExplainJSON("", body, &ns)
	}
	c.namespaces[ns.Name] = &webhook.Namespace{Name: ns.Name, Labels: ns.Labels, Annotations: ns.Annotations}
	return nil
}

// asked returns the requested mode of a workload, and which object requests it: the pod template, then the namespace,
// else the mode otherwise. If the template is unknown, a pod's annotation is not used: the injector may have written
// it.
func (c *Cluster) asked(w *workload, otherwise mesh.ProbesMode) (mode mesh.ProbesMode, by string, err error) {
	mode, err = webhook.ProbesModeOf(w.template.Labels, w.template.Annotations)
	if err != nil {
		return "", "", err
	}
	if mode != "" {
		return mode, "the pod template", nil
	}
	ns := c.namespaces[w.namespace]
	if ns == nil {
		return otherwise, "", nil
	}
	mode, err = webhook.ProbesModeOf(ns.Labels, ns.Annotations)
	if err != nil {
		return "", "", fmt.Errorf("namespace %s: %w", ns.Name, err)
	}
	if mode == "" {
		return otherwise, "", nil
	}
	return mode, "namespace " + ns.Name, nil
}

// selected reports whether Sonde injects new pods of a workload. Without the namespace this is unknown, unless the
// pods' own labels decide. The template must be restored if it was injected by hand.
func (c *Cluster) selected(
	w *workload, template *corev1.Pod, o webhook.Options,
) (selection webhook.Selection, known bool, err error) {
	ns := c.namespaces[w.namespace]
	if ns != nil {
		selection, err = webhook.Select(ns, template, o)
		return selection, true, err
	}
	selection, err = webhook.Select(nil, template, o)
	for _, key := range o.InjectionKeys() {
		known = known || w.template.Labels[key] != "" || w.template.Annotations[key] != ""
	}
	return selection, known, err
}

// setting returns the value of a label or annotation of the workload's pods, otherwise of the namespace's label.
func (c *Cluster) setting(w *workload, key string) string {
	for _, values := range []map[string]string{w.template.Labels, w.template.Annotations} {
		if value, ok := values[key]; ok {
			return value
		}
	}
	if ns := c.namespaces[w.namespace]; ns != nil {
		return ns.Labels[key]
	}
	return ""
}

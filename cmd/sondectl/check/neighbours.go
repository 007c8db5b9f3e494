package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/cluster"
	"github.com/sonde-mesh/sonde/webhook"
)

// controlPlanes says whether there is one where it is to be, and no other: the names of the chart's webhooks and ClusterRoles are the same for each.
func controlPlanes(f *facts) []Line {
	const name = "control planes"
	if f.pods.err != nil {
		return []Line{unread(name, f.pods.err)}
	}
	var here, elsewhere []string
	for _, p := range cluster.PlanesOf(f.pods.is) {
		if p.Namespace == f.namespace && (!f.installed || p.Release == f.plane.Release) {
			here = append(here, p.String())
		} else {
			elsewhere = append(elsewhere, p.String())
		}
	}
	switch {
	case len(elsewhere) > 0 && f.installed:
		return []Line{{
			Name: name, Level: Fail, Text: "there is another one: both inject, and each takes the webhook configurations and ClusterRoles of the other", Notes: elsewhere,
			Do: "helm uninstall one of them",
		}}
	case len(elsewhere) > 0:
		return []Line{{
			Name: name, Level: Fail, Text: "there is one already: another one would take its webhook configurations and ClusterRoles", Notes: elsewhere,
			Do: "upgrade that one, and check it with --installed --" + cluster.FlagNamespace,
		}}
	case !f.installed && len(here) > 0:
		return []Line{{Name: name, Level: Warn, Text: here[0] + " is there already", Do: "check it with --installed. helm upgrade replaces it"}}
	case f.installed:
		return []Line{{Name: name, Level: OK, Text: f.plane.String() + " alone"}}
	}
	return []Line{{Name: name, Level: OK, Text: "none is there yet"}}
}

// otherLabels are the labels by which other meshes know what they are to inject, each with the mesh.
var otherLabels = map[string]string{
	mesh.LabelInjection: "Kuma", "istio-injection": "Istio", "istio.io/rev": "Istio", "linkerd.io/inject": "Linkerd",
}

// neighbour is another mesh.
type neighbour struct {
	mesh           string
	configurations map[string]bool
	labels         map[string]bool
}

// otherMeshes says which other meshes inject pods, and who owns which label.
func otherMeshes(f *facts) []Line {
	const name = "other meshes"
	if f.mutating.err != nil {
		return []Line{unread(name, f.mutating.err)}
	}
	neighbours := f.neighbours()
	if len(neighbours) == 0 {
		return []Line{{Name: name, Level: OK, Text: "none injects pods"}}
	}
	var lines []Line
	for _, n := range neighbours {
		labels := strings.Join(slices.Sorted(maps.Keys(n.labels)), ", ")
		where := "MutatingWebhookConfiguration " + strings.Join(slices.Sorted(maps.Keys(n.configurations)), ", ")
		injection := f.injection()
		both := f.askBoth(n)
		switch {
		case n.labels[mesh.LabelInjection] && !injection.OwnLabelOnly:
			level := Fail
			if !f.installed {
				level = Warn // that depends on the values
			}
			lines = append(lines, Line{
				Name: name, Level: level, Text: fmt.Sprintf("%s and Sonde both read %s: pods would get the sidecars of both", n.mesh, mesh.LabelInjection), Notes: []string{where},
				Do: fmt.Sprintf("install with --set config.injection.kumaLabels=false: then %s is %s's, and %s Sonde's", mesh.LabelInjection, n.mesh, mesh.LabelOwnInjection),
			})
		case len(both) > 0:
			lines = append(lines, Line{
				Name: name, Level: Fail, Text: fmt.Sprintf("namespaces ask %s and Sonde for a sidecar", n.mesh), Notes: both,
				Do: fmt.Sprintf("take one of the labels away: %s is %s's, and %s Sonde's", labels, n.mesh, strings.Join(injection.InjectionKeys(), ", ")),
			})
		default:
			lines = append(lines, Line{
				Name: name, Level: OK, Text: fmt.Sprintf("%s is there (%s): %s is %s's, and %s Sonde's", n.mesh, where, labels, n.mesh, strings.Join(injection.InjectionKeys(), ", ")),
			})
		}
	}
	return lines
}

// neighbours returns the other meshes whose webhooks change pods, sorted.
func (f *facts) neighbours() []neighbour {
	found := map[string]neighbour{}
	for i := range f.mutating.is {
		c := &f.mutating.is[i]
		if c.Name == configurationName {
			continue
		}
		for j := range c.Webhooks {
			w := &c.Webhooks[j]
			if !changesPods(w) {
				continue
			}
			for _, label := range append(selected(w.NamespaceSelector), selected(w.ObjectSelector)...) {
				name, known := otherLabels[label]
				if !known {
					continue
				}
				if found[name].mesh == "" {
					found[name] = neighbour{name, map[string]bool{}, map[string]bool{}}
				}
				found[name].configurations[c.Name], found[name].labels[label] = true, true
			}
		}
	}
	var all []neighbour
	for _, name := range slices.Sorted(maps.Keys(found)) {
		all = append(all, found[name])
	}
	return all
}

// changesPods reports whether a webhook is asked about pods that are made.
func changesPods(w *admissionv1.MutatingWebhook) bool {
	return slices.ContainsFunc(w.Rules, func(r admissionv1.RuleWithOperations) bool {
		return slices.Contains(r.Resources, "pods") || slices.Contains(r.Resources, "*")
	})
}

// selected returns the labels that a selector asks for.
func selected(s *metav1.LabelSelector) []string {
	if s == nil {
		return nil
	}
	labels := slices.Collect(maps.Keys(s.MatchLabels))
	for _, e := range s.MatchExpressions {
		if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpExists {
			labels = append(labels, e.Key)
		}
	}
	return labels
}

// injection returns how Sonde selects pods. Of an installation its webhooks say it.
func (f *facts) injection() webhook.Options {
	o, _ := webhook.Installed(f.mutating.is)
	return webhook.Options{OwnLabelOnly: o.OwnLabelOnly, ControlPlaneNamespace: f.namespace}
}

// askBoth returns the namespaces that ask for the sidecars of another mesh and of Sonde.
func (f *facts) askBoth(n neighbour) []string {
	var both []string
	injection := f.injection()
	keys := injection.InjectionKeys()
	for i := range f.namespaces.is {
		ns := &f.namespaces.is[i]
		if asksOther(ns, n) && slices.ContainsFunc(keys, func(key string) bool { return switchedOn(ns.Labels[key]) }) {
			both = append(both, ns.Name)
		}
	}
	slices.Sort(both)
	return both
}

// asksOther reports whether a namespace asks another mesh for sidecars.
func asksOther(ns *corev1.Namespace, n neighbour) bool {
	for label := range n.labels {
		value, isLabel := ns.Labels[label]
		if label == "istio.io/rev" && isLabel || switchedOn(value) {
			return true
		}
	}
	return false
}

// switchedOn reports whether a label asks for a sidecar. One of a wrong value does not.
func switchedOn(value string) bool {
	on, err := mesh.ParseSwitch(value)
	return err == nil && on
}

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
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/webhook"
)

// controlPlanes reports other control planes in the cluster: the chart's webhooks and ClusterRoles have the same names
// in each release.
var controlPlanes = check{"control planes", (*facts).needsPods, func(f *facts, l *lines) {
	var here, elsewhere []string
	for _, p := range cluster.PlanesOf(f.pods.is) {
		if p.Namespace == f.namespace && (!f.installed || p.Release == f.plane.Release) {
			here = append(here, p.String())
		} else {
			elsewhere = append(elsewhere, p.String())
		}
	}
	switch {
	case f.installed:
		l.failOf(elsewhere,
			"the cluster has another control plane: both inject pods, and each overwrites the other's webhook configurations and ClusterRoles",
			"uninstall one of them with helm")
		l.ok(f.plane.String() + " alone")
	case len(elsewhere) > 0:
		l.fail("the cluster already has a control plane: a second one would overwrite its webhook configurations and ClusterRoles",
			"upgrade the existing one, and check it with --installed --"+cluster.FlagNamespace, elsewhere...)
	case len(here) > 0:
		l.warn(here[0]+" is already installed", "check it with --installed, or upgrade it with helm upgrade")
	}
	l.ok("none installed yet")
}}

// otherLabels maps the labels that select pods for injection to other meshes. Linkerd's is an annotation.
var otherLabels = map[string]string{
	mesh.LabelInjection: podspec.Kuma, "istio-injection": podspec.Istio, "istio.io/rev": podspec.Istio, podspec.LinkerdInject: podspec.Linkerd,
	podspec.AppMeshInject: podspec.AppMesh, podspec.ConsulInject: podspec.Consul,
}

// unlabelled maps name suffixes of webhooks without a label selector to the key that their mesh reads.
var unlabelled = map[string]string{".linkerd.io": podspec.LinkerdInject, ".consul.hashicorp.com": podspec.ConsulInject}

// neighbour is another mesh.
type neighbour struct {
	mesh           string
	configurations map[string]bool
	labels         map[string]bool
}

// otherMeshes reports other meshes that inject pods, and conflicts over labels.
var otherMeshes = check{"other meshes", (*facts).needsWebhooks, func(f *facts, l *lines) {
	injection := f.injection()
	own := strings.Join(injection.InjectionKeys(), ", ")
	for _, n := range f.neighbours() {
		labels := strings.Join(slices.Sorted(maps.Keys(n.labels)), ", ")
		where := "MutatingWebhookConfiguration " + strings.Join(slices.Sorted(maps.Keys(n.configurations)), ", ")
		both := f.askBoth(n)
		switch {
		case n.labels[mesh.LabelInjection] && !injection.OwnLabelOnly:
			level := Fail
			if !f.installed {
				level = Warn // the chart's values can avoid the conflict
			}
			l.add(level,
				fmt.Sprintf("%s and Sonde both read %s: pods get the sidecar of %s, and Sonde does not inject them",
					n.mesh, mesh.LabelInjection, n.mesh),
				fmt.Sprintf("install with --set config.injection.kumaLabels=false: then %s belongs to %s, and %s to Sonde",
					mesh.LabelInjection, n.mesh, mesh.LabelOwnInjection), where)
		case len(both) > 0:
			l.fail(
				fmt.Sprintf("namespaces ask for the sidecars of both %s and Sonde: Sonde does not inject pods that already have the other sidecar", n.mesh),
				fmt.Sprintf("remove one of the labels: %s belongs to %s, and %s to Sonde", labels, n.mesh, own), both...)
		default:
			l.add(OK, fmt.Sprintf("%s is installed (%s): %s belongs to %s, and %s to Sonde", n.mesh, where, labels, n.mesh, own), "")
		}
	}
	l.ok("no other mesh injects pods")
}}

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
			labels := append(selected(w.NamespaceSelector), selected(w.ObjectSelector)...)
			for domain, key := range unlabelled {
				if strings.HasSuffix(w.Name, domain) {
					labels = append(labels, key)
				}
			}
			for _, label := range labels {
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

// changesPods reports whether a webhook gets the creation of pods.
func changesPods(w *admissionv1.MutatingWebhook) bool {
	return slices.ContainsFunc(w.Rules, func(r admissionv1.RuleWithOperations) bool {
		return slices.Contains(r.Resources, "pods") || slices.Contains(r.Resources, "*")
	})
}

// selected returns the labels that a selector requires.
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

// injection returns how Sonde selects pods, for an installation from its webhooks.
func (f *facts) injection() webhook.Options {
	o, _ := webhook.Installed(f.mutating.is)
	return webhook.Options{OwnLabelOnly: o.OwnLabelOnly, ControlPlaneNamespace: f.namespace}
}

// askBoth returns namespaces that ask for the sidecars of both another mesh and Sonde.
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
		if label == podspec.LinkerdInject {
			value = ns.Annotations[label]
		}
		if label == "istio.io/rev" && isLabel || switchedOn(value) || label == podspec.LinkerdInject && value == "ingress" {
			return true
		}
	}
	return false
}

// switchedOn reports whether a label asks for a sidecar. A label with an invalid value does not.
func switchedOn(value string) bool {
	on, err := mesh.ParseSwitch(value)
	return err == nil && on
}

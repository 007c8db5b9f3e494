package webhook

import (
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

const (
	// Injects ends the names of the webhooks of the chart that inject pods.
	Injects = ".inject." + mesh.Group
	// ofKuma is the one of namespaces with the label of Kuma.
	ofKuma = "kuma-namespace" + Injects
)

// Installed returns which pods an installation selects, of which only OwnLabelOnly and ControlPlaneNamespace are set: its webhooks say it. If none of the
// configurations has one that injects, it returns what is so by default, and false.
func Installed(configurations []admissionv1.MutatingWebhookConfiguration) (o Options, is bool) {
	o.OwnLabelOnly = true
	for i := range configurations {
		for _, w := range configurations[i].Webhooks {
			if !strings.HasSuffix(w.Name, Injects) {
				continue
			}
			is = true
			if w.Name == ofKuma {
				o.OwnLabelOnly = false
			}
			if w.ClientConfig.Service != nil {
				o.ControlPlaneNamespace = w.ClientConfig.Service.Namespace
			}
		}
	}
	if !is {
		return Options{}, false
	}
	return o, true
}

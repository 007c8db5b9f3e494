package webhook

import (
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

const (
	// Injects is the name suffix of the chart's webhooks that inject pods.
	Injects = ".inject." + mesh.Group
	// ofKuma is the name of the webhook for namespaces with Kuma's label.
	ofKuma = "kuma-namespace" + Injects
)

// Installed reads from an installation's webhooks which pods it selects. It only sets OwnLabelOnly and
// ControlPlaneNamespace. If no configuration has an injecting webhook, it returns the defaults and false.
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

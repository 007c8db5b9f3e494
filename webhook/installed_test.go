package webhook_test

import (
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"github.com/sonde-mesh/sonde/webhook"
)

func TestInstalled(t *testing.T) {
	type webhooks []string
	for name, tc := range map[string]struct {
		webhooks webhooks
		own      bool // only Sonde's own label selects pods
		is       bool
	}{
		"nothing":               {},
		"another mesh":          {webhooks: webhooks{"sidecar-injector.istio.io"}},
		"as by default":         {webhooks: webhooks{"namespace.inject.sonde.dev", "kuma-namespace.inject.sonde.dev"}, is: true},
		"without Kuma's labels": {webhooks: webhooks{"namespace.inject.sonde.dev"}, own: true, is: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := admissionv1.MutatingWebhookConfiguration{}
			for _, name := range tc.webhooks {
				c.Webhooks = append(c.Webhooks, admissionv1.MutatingWebhook{Name: name})
			}
			o, is := webhook.Installed([]admissionv1.MutatingWebhookConfiguration{c})
			if o.OwnLabelOnly != tc.own || is != tc.is {
				t.Errorf("Installed() = %+v, %t", o, is)
			}
		})
	}
}

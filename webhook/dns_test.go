package webhook_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/webhook"
)

// A pod that does not use the cluster's DNS gets the control plane in its hosts file.
func TestControlPlaneInHosts(t *testing.T) {
	const host = "sonde-cp.sonde-system.svc"
	both := []corev1.HostAlias{{IP: "10.96.0.5", Hostnames: []string{host}}, {IP: "fd00::5", Hostnames: []string{host}}}
	own := corev1.HostAlias{IP: "10.0.0.1", Hostnames: []string{"db"}}
	tests := map[string]struct {
		spec, controlPlane string
		want               []corev1.HostAlias
		warns              bool
	}{
		"of the node":            {spec: "dnsPolicy: Default", want: both},
		"of its own":             {spec: "dnsPolicy: None, dnsConfig: {nameservers: [1.1.1.1]}", want: both},
		"of the cluster":         {spec: "dnsPolicy: ClusterFirst"},
		"not said":               {spec: "hostname: a"},
		"beside the pod's":       {spec: "dnsPolicy: None, hostAliases: [{ip: 10.0.0.1, hostnames: [db]}]", want: append([]corev1.HostAlias{own}, both...)},
		"the pod's own decides":  {spec: "dnsPolicy: None, hostAliases: [{ip: 10.0.0.9, hostnames: [db, " + host + "]}]", want: []corev1.HostAlias{{IP: "10.0.0.9", Hostnames: []string{"db", host}}}},
		"a longer name":          {spec: "dnsPolicy: None", controlPlane: host + ".cluster.local:5678", want: []corev1.HostAlias{{IP: "10.96.0.5", Hostnames: []string{host + ".cluster.local"}}, {IP: "fd00::5", Hostnames: []string{host + ".cluster.local"}}}},
		"an address":             {spec: "dnsPolicy: None", controlPlane: "10.96.0.5:5678"},
		"an unknown Service":     {spec: "dnsPolicy: None", controlPlane: "cp.sonde-system.svc:5678", warns: true},
		"no Service, but a name": {spec: "dnsPolicy: None", controlPlane: "cp.example.com:5678", warns: true},
		"a short name":           {spec: "dnsPolicy: None", controlPlane: "cp:5678", warns: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := enabled()
			c.services = map[string][]string{"sonde-system/sonde-cp": {"10.96.0.5", "fd00::5"}}
			o := c.options()
			o.Injection.ControlPlane = tc.controlPlane
			s := newServer(t, o)
			pod := toJSON(t, "{spec: {"+tc.spec+", containers: [{name: app}]}}")
			answer := review(t, s, webhook.PathInject, podReview("shop", pod))
			if warns := strings.Contains(strings.Join(answer.Warnings, "\n"), "this pod only starts if its DNS servers can resolve"); warns != tc.warns {
				t.Errorf("warnings = %q, want one of DNS: %v", answer.Warnings, tc.warns)
			}
			pod = applied(t, pod, answer)
			if diff := cmp.Diff(tc.want, decode(t, pod).Spec.HostAliases); diff != "" {
				t.Errorf("hostAliases (-want +got):\n%s", diff)
			}
			if again := review(t, s, webhook.PathInject, podReview("shop", pod)); again.Patch != nil {
				t.Errorf("the second time the patch is %s", again.Patch)
			}
		})
	}
}

// While Services are unknown, the API server retries, except for pods that do not need them.
func TestServicesAreNotRead(t *testing.T) {
	o := enabled().options()
	o.ServiceIPs = func(string, string) ([]string, error) { return nil, errors.New("not read yet") }
	s := newServer(t, o)
	for policy, want := range map[string]int{"None": http.StatusServiceUnavailable, "ClusterFirst": http.StatusOK} {
		pod := podReview("shop", toJSON(t, "{spec: {dnsPolicy: "+policy+", containers: [{name: app}]}}"))
		if w := post(t, s, webhook.PathInject, pod); w.Code != want {
			t.Errorf("dnsPolicy %s: %d %s, want %d", policy, w.Code, w.Body, want)
		}
	}
}

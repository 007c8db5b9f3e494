package check

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/webhook"
)

// endpoints checks that the webhook's Service has a Ready endpoint.
var endpoints = check{"webhook Service", (*facts).needsEndpoints, func(f *facts, l *lines) {
	ready := 0
	for _, s := range f.endpoints.is {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				ready++
			}
		}
	}
	if ready == 0 {
		l.fail(fmt.Sprintf("Service %s in namespace %s has no Ready endpoint: "+
			"the API server cannot call the webhook, so pods that need injection cannot be created", serviceName, f.namespace),
			f.mend(fmt.Sprintf("see kubectl -n %s get pods,endpointslices: "+
				"the Service's selector must match Ready replicas", f.namespace)), f.lost()...)
	}
	l.ok(printer.Plural(ready, "endpoint") + " Ready")
}}

// ofSonde matches the name of one of Sonde's injecting webhooks in errors of the API server.
var ofSonde = regexp.MustCompile(`"[a-z-]+` + regexp.QuoteMeta(webhook.Injects) + `"`)

// unreached reports whether the API server could not reach the webhook.
func (d dryRun) unreached() bool {
	return d.err != nil && ofSonde.MatchString(d.err.Error()) && !strings.Contains(d.err.Error(), denied)
}

// denied is part of the API server's error if a webhook rejects a pod.
const denied = "denied the request"

// dryRunPod checks by the result of the dry run that the API server reaches the webhook.
var dryRunPod = check{name: "webhook", say: func(f *facts, l *lines) {
	d := f.dryRun
	switch {
	case d.err == nil && podspec.IsInjected(&d.pod.Spec):
		l.ok(fmt.Sprintf("dry run: a pod in namespace %s is injected", d.namespace))
	case d.err == nil:
		l.fail(
			fmt.Sprintf("the API server does not call the webhook for a pod in namespace %s that asks for a sidecar", d.namespace),
			"check that MutatingWebhookConfiguration "+configurationName+" exists and is unchanged: "+
				"helm upgrade restores it")
	case !ofSonde.MatchString(d.err.Error()):
		l.warn(fmt.Sprintf("not checked: cannot create a pod in namespace %s: %s", d.namespace, d.err),
			"set --pod-namespace to a namespace where you have the right to create pods, and where Pod Security allows NET_ADMIN")
	case strings.Contains(d.err.Error(), denied):
		l.fail(fmt.Sprintf("the webhook rejects a pod in namespace %s: %s", d.namespace, d.err),
			"fix the error, or set another namespace with --pod-namespace")
	default:
		l.fail("the API server does not reach the webhook, so pods that need injection cannot be created: "+d.err.Error(),
			f.mend(fmt.Sprintf("check that replicas are Ready, that firewalls and NetworkPolicies let API servers reach port 5443 "+
				"of namespace %s, and that the caBundle of MutatingWebhookConfiguration %s matches its certificate",
				f.namespace, configurationName)))
	}
}}

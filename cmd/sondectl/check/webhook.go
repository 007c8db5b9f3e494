package check

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/webhook"
)

// endpoints says whether the Service of the webhook has an endpoint.
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
		l.fail(fmt.Sprintf("Service %s in namespace %s has no endpoint that is Ready: "+
			"the API server cannot ask the webhook, and no pod that is to be injected can be made", serviceName, f.namespace),
			f.mend(fmt.Sprintf("kubectl -n %s get pods,endpointslices: "+
				"the selector of the Service has to match replicas that are Ready", f.namespace)), f.lost()...)
	}
	l.ok(printer.Plural(ready, "endpoint") + " Ready")
}}

// ofSonde matches the name of one of our webhooks that inject, as errors of the API server have it.
var ofSonde = regexp.MustCompile(`"[a-z-]+` + regexp.QuoteMeta(webhook.Injects) + `"`)

// unreached reports whether the API server has not reached the webhook.
func (d dryRun) unreached() bool {
	return d.err != nil && ofSonde.MatchString(d.err.Error()) && !strings.Contains(d.err.Error(), denied)
}

// denied is in what the API server says of a pod that a webhook has refused.
const denied = "denied the request"

// dryRunPod says whether the API server reaches the webhook, by what it has said to a pod.
var dryRunPod = check{name: "webhook", say: func(f *facts, l *lines) {
	d := f.dryRun
	switch {
	case d.err == nil && podspec.IsInjected(&d.pod.Spec):
		l.ok(fmt.Sprintf("the API server has a pod in namespace %s injected (dry run)", d.namespace))
	case d.err == nil:
		l.fail(
			fmt.Sprintf("the API server does not ask the webhook about a pod in namespace %s that asks for a sidecar", d.namespace),
			"see whether MutatingWebhookConfiguration "+configurationName+" is there, and as the chart makes it: "+
				"helm upgrade puts it right")
	case !ofSonde.MatchString(d.err.Error()):
		l.warn(fmt.Sprintf("not checked: no pod may be made in namespace %s: %s", d.namespace, d.err),
			"name a namespace with --pod-namespace where you may make pods, and where Pod Security allows NET_ADMIN")
	case strings.Contains(d.err.Error(), denied):
		l.fail(fmt.Sprintf("it refuses a pod in namespace %s: %s", d.namespace, d.err),
			"mend what it names, or name another namespace with --pod-namespace")
	default:
		l.fail("the API server does not reach it, so that pods that are to be injected cannot be made: "+d.err.Error(),
			f.mend(fmt.Sprintf("see that replicas are Ready, that firewalls and NetworkPolicies let API servers reach port 5443 "+
				"of namespace %s, and that the caBundle of MutatingWebhookConfiguration %s is that of its certificate",
				f.namespace, configurationName)))
	}
}}

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
func endpoints(f *facts) []Line {
	const name = "webhook Service"
	if f.endpoints.err != nil {
		return []Line{unread(name, f.endpoints.err)}
	}
	ready := 0
	for _, s := range f.endpoints.is {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				ready++
			}
		}
	}
	if ready == 0 {
		return []Line{{
			Name: name, Level: Fail, Text: fmt.Sprintf("Service %s in namespace %s has no endpoint that is Ready: pods that are to be injected cannot be made", serviceName, f.namespace),
			Do: fmt.Sprintf("kubectl -n %s get pods,endpointslices: the selector of the Service has to match replicas that are Ready", f.namespace),
		}}
	}
	return []Line{{Name: name, Level: OK, Text: printer.Plural(ready, "endpoint") + " Ready"}}
}

// ofSonde matches the name of one of our webhooks that inject, as errors of the API server have it.
var ofSonde = regexp.MustCompile(`"[a-z-]+` + regexp.QuoteMeta(webhook.Injects) + `"`)

// unreached reports whether the API server has not reached the webhook.
func (d dryRun) unreached() bool {
	return d.err != nil && ofSonde.MatchString(d.err.Error()) && !strings.Contains(d.err.Error(), denied)
}

// denied is in what the API server says of a pod that a webhook has refused.
const denied = "denied the request"

// dryRunPod says whether the API server reaches the webhook, by what it has said to a pod.
func dryRunPod(f *facts) []Line {
	const name = "webhook"
	d := f.dryRun
	switch {
	case d.err == nil && podspec.IsInjected(&d.pod.Spec):
		return []Line{{Name: name, Level: OK, Text: fmt.Sprintf("the API server has a pod in namespace %s injected (dry run)", d.namespace)}}
	case d.err == nil:
		return []Line{{
			Name: name, Level: Fail, Text: fmt.Sprintf("the API server does not ask the webhook about a pod in namespace %s that asks for a sidecar", d.namespace),
			Do: fmt.Sprintf("see whether MutatingWebhookConfiguration %s is there, and as the chart makes it: helm upgrade puts it right", configurationName),
		}}
	case !ofSonde.MatchString(d.err.Error()):
		return []Line{{
			Name: name, Level: Warn, Text: fmt.Sprintf("not checked: no pod may be made in namespace %s: %s", d.namespace, d.err),
			Do: "name a namespace with --pod-namespace where you may make pods, and where Pod Security allows NET_ADMIN",
		}}
	case strings.Contains(d.err.Error(), denied):
		return []Line{{
			Name: name, Level: Fail, Text: fmt.Sprintf("it refuses a pod in namespace %s: %s", d.namespace, d.err),
			Do: "mend what it names, or name another namespace with --pod-namespace",
		}}
	}
	return []Line{{
		Name: name, Level: Fail, Text: fmt.Sprintf("the API server does not reach it, so that pods that are to be injected cannot be made: %s", d.err),
		Do: fmt.Sprintf("see that replicas are Ready, that firewalls and NetworkPolicies let API servers reach port 5443 of namespace %s, and that the caBundle of MutatingWebhookConfiguration %s is that of its certificate",
			f.namespace, configurationName),
	}}
}

package why

import (
	"fmt"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// incoming notes how connections reach a pod that is a gateway or has the gateway annotation.
func incoming(f *Facts, _ []Finding) []Finding {
	if !podspec.IsInjected(&f.Pod.Spec) {
		return nil
	}
	value := f.Pod.Annotations[mesh.AnnotationGateway]
	asked, err := mesh.ParseSwitch(value)
	is := podspec.IsGateway(&f.Pod.Spec)
	r := Finding{
		Cause: "Gateway",
		Text:  "it is a gateway: its incoming connections are not redirected, and reach its containers without mTLS, also in mode STRICT",
	}
	switch {
	case err == nil && asked != is:
		r.Cause = "GatewayNotInjected"
		r.Text = fmt.Sprintf("%s: %s has no effect until it is recreated, since its sidecar was injected without it", mesh.AnnotationGateway, value)
	case !is:
		return nil
	}
	if text, ok := podspec.RedirectionText(&f.Pod.Spec); ok {
		r.Evidence = []Evidence{{
			Of: "spec.initContainers{" + mesh.ContainerSidecar + "}.env{" + mesh.EnvRedirection + "}", Says: text,
		}}
		return []Finding{r}
	}
	r.Evidence = []Evidence{{
		Of:   "spec.initContainers{" + mesh.ContainerInit + "}.args",
		Says: fmt.Sprintf("%s%t", mesh.ArgRedirectInbound, !is),
	}}
	return []Finding{r}
}

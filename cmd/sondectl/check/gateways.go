package check

import (
	"fmt"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// gateways reports pods that got the gateway annotation before it had an effect: once recreated, they accept
// connections from anyone.
var gateways = check{"gateways", (*facts).needsPods, func(f *facts, l *lines) {
	are := 0
	var later []string
	for i := range f.pods.is {
		pod := &f.pods.is[i]
		if ended(pod) || !podspec.IsInjected(&pod.Spec) {
			continue
		}
		if podspec.IsGateway(&pod.Spec) {
			are++
		} else if on, err := mesh.ParseSwitch(pod.Annotations[mesh.AnnotationGateway]); err == nil && on {
			later = append(later, workloadOf(pod))
		}
	}
	l.warnOf(sorted(later),
		fmt.Sprintf("workloads got %s: enabled before it had an effect: "+
			"their next pods accept plaintext from anyone at every port, even in mode STRICT", mesh.AnnotationGateway),
		"remove the annotation from workloads that are not gateways before their pods are recreated")
	l.ok(printer.Plural(are, "gateway") + ", and no other pod has the annotation")
}}

//go:build kubelet

package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/test/fidelity/cases"
	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
)

// probed says who probes.
const probed = "probes of b-1, made by the code of the kubelet " + cases.KubeletVersion

// ask makes one probe of a container.
func ask(ctx context.Context, pod *corev1.Pod, c *corev1.Container, kind string) (finding, error) {
	k := kubelet.New()
	defer k.Close()
	v, words := k.Probe(ctx, pod, *c, kind)
	return finding{verdict(v), words}, nil
}

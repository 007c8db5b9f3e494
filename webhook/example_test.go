package webhook_test

import (
	"fmt"
	"log"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// The application's liveness probe now calls the agent, which has the original in its probe table.
func ExampleInject() {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "web",
			LivenessProbe: &corev1.Probe{
				TimeoutSeconds: 2,
				ProbeHandler:   corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}},
			},
		}}},
	}
	injected, warnings, err := webhook.Inject(pod, webhook.Options{ControlPlane: "cp.example:5678"})
	if err != nil {
		log.Fatal(err)
	}
	probe := injected.Spec.Containers[0].LivenessProbe
	fmt.Printf("GET :%d%s within %d s\n", probe.HTTPGet.Port.IntValue(), probe.HTTPGet.Path, probe.TimeoutSeconds)
	for _, c := range injected.Spec.InitContainers {
		fmt.Println(c.Name)
		for _, v := range c.Env {
			if v.Name == mesh.EnvProbeTable {
				fmt.Println(v.Value)
			}
		}
	}
	fmt.Println(len(warnings), "warnings")
	// Output:
	// GET :9000/tcp/8080 within 3 s
	// kuma-init
	// kuma-sidecar
	// [{"id":"web-liveness","container":"web","type":"liveness","timeoutSeconds":2,"tcpSocket":{"port":8080}}]
	// 0 warnings
}

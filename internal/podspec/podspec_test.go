package podspec_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

func TestContainer(t *testing.T) {
	spec := &corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "setup"}, {Name: "logs", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}},
		Containers:     []corev1.Container{{Name: "web"}},
	}
	for name, want := range map[string]*corev1.Container{
		"setup": &spec.InitContainers[0], "logs": &spec.InitContainers[1], "web": &spec.Containers[0], "other": nil,
	} {
		got := podspec.Container(spec, name)
		if got != want {
			t.Errorf("Container(%q) = %v, want %v", name, got, want)
		}
		if got != nil && podspec.IsNativeSidecar(got) != (name == "logs") {
			t.Errorf("IsNativeSidecar(%q) = %v", name, name != "logs")
		}
	}
}

func TestIsInjected(t *testing.T) {
	spec := &corev1.PodSpec{Containers: []corev1.Container{{Name: mesh.ContainerSidecar}}} // Kuma's has that name, too
	if podspec.IsInjected(spec) {
		t.Error("IsInjected() without the volume = true")
	}
	spec.Volumes = []corev1.Volume{{Name: "data"}, {Name: mesh.VolumeIdentity}}
	if !podspec.IsInjected(spec) {
		t.Error("IsInjected() = false")
	}
}

func TestPortArgument(t *testing.T) {
	c := &corev1.Container{Args: []string{"run", "--a=1", "--b=:2", "--c=[::]:3", "--d=x", "--e=0", "--f=70000", "--g=10.0.0.1:4", "--a=9"}}
	for argument, want := range map[string]int32{"--a=": 1, "--b=": 2, "--c=": 3, "--d=": 0, "--e=": 0, "--f=": 0, "--g=": 4, "--h=": 0} {
		if got := podspec.PortArgument[int32](c, argument); got != want {
			t.Errorf("port of %s is %d, want %d", argument, got, want)
		}
	}
}

func TestWaitsForImage(t *testing.T) {
	for reason, want := range map[string]bool{"ImagePullBackOff": true, "SignatureValidationFailed": true, "RegistryUnavailable": true, "ContainerCreating": false, "CrashLoopBackOff": false, "": false} {
		if podspec.WaitsForImage(reason) != want {
			t.Errorf("WaitsForImage(%q) = %t", reason, !want)
		}
	}
}

package podspec_test

import (
	"slices"
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
			t.Errorf("port in %s is %d, want %d", argument, got, want)
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

func TestExcludedInbound(t *testing.T) {
	tests := map[string]struct {
		args []string
		want []uint32
	}{
		"some":       {[]string{"--redirect-inbound=true", "--exclude-inbound-ports", "9000,9800", "--verbose"}, []uint32{9000, 9800}},
		"none":       {[]string{"--exclude-inbound-ports", "", "--verbose"}, nil},
		"no such":    {[]string{"--verbose"}, nil},
		"no value":   {[]string{"--exclude-inbound-ports"}, nil},
		"not a port": {[]string{"--exclude-inbound-ports", "http"}, nil},
	}
	for name, tc := range tests {
		spec := &corev1.PodSpec{InitContainers: []corev1.Container{{Name: mesh.ContainerInit, Args: tc.args}}}
		if got := podspec.ExcludedInbound(spec); !slices.Equal(got, tc.want) {
			t.Errorf("%s: ExcludedInbound() = %d, want %d", name, got, tc.want)
		}
	}
	redirected := &corev1.PodSpec{
		Volumes: []corev1.Volume{{Name: mesh.VolumeIdentity}},
		InitContainers: []corev1.Container{{Name: mesh.ContainerSidecar, Env: []corev1.EnvVar{
			{Name: mesh.EnvRedirection, Value: `{"excludeInboundPorts":[9000,9800],"families":"dualstack"}`},
		}}},
	}
	if got, want := podspec.ExcludedInbound(redirected), []uint32{9000, 9800}; !slices.Equal(got, want) {
		t.Errorf("redirected by the CNI plugin: ExcludedInbound() = %d, want %d", got, want)
	}
	if got := podspec.ExcludedInbound(&corev1.PodSpec{}); got != nil {
		t.Errorf("without kuma-init: ExcludedInbound() = %d", got)
	}
}

// Kuma's init container has the same name and argument.
func TestIsGateway(t *testing.T) {
	ours := []corev1.Volume{{Name: mesh.VolumeIdentity}}
	tests := map[string]struct {
		volumes []corev1.Volume
		args    []string
		want    bool
	}{
		"a gateway":   {ours, []string{"--redirect-outbound-port", "15001", "--redirect-inbound=false"}, true},
		"another pod": {ours, []string{"--redirect-inbound=true"}, false},
		"Kuma's":      {nil, []string{"--redirect-inbound=false"}, false},
	}
	for name, tc := range tests {
		spec := &corev1.PodSpec{Volumes: tc.volumes, InitContainers: []corev1.Container{{Name: mesh.ContainerInit, Args: tc.args}}}
		if got := podspec.IsGateway(spec); got != tc.want {
			t.Errorf("%s: IsGateway() = %t, want %t", name, got, tc.want)
		}
	}
}

package webhook

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// earlier is the result of an earlier injection of a pod.
type earlier struct {
	form    Form
	enabled bool // the agent answers probes
	mode    mesh.ProbesMode
	port    int32  // virtual port, 0 for none
	mesh    string // "" if unset in the sidecar
	image   string
	table   mesh.ProbeTable
	// lbHealthPort is the port for load balancers; 0 for none.
	lbHealthPort int32
	// metricsPort is the port for Prometheus; 0 for none.
	metricsPort int32
}

// findEarlier returns the earlier injection of a pod, or nil. It returns an error if other containers have Sonde's
// names, since other meshes use the same names.
func findEarlier(pod *corev1.Pod) (*earlier, error) {
	c := podspec.Container(&pod.Spec, mesh.ContainerSidecar)
	if c == nil {
		return nil, checkNamesFree(pod)
	}
	e := &earlier{form: Container, image: c.Image}
	if podspec.Index(pod.Spec.Containers, mesh.ContainerSidecar) < 0 {
		e.form = Native
	}
	foreign := fmt.Errorf("containers[%s]: name is reserved for Sonde, which has not added this container", c.Name)
	if e.form == Native && !podspec.IsNativeSidecar(c) {
		return nil, foreign
	}
	env := slices.IndexFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == mesh.EnvProbeTable })
	arg := slices.IndexFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, mesh.ArgVirtualPort) })
	if env < 0 || arg < 0 {
		return nil, foreign
	}
	value := strings.TrimPrefix(c.Args[arg], mesh.ArgVirtualPort)
	port, err := strconv.ParseUint(value, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("containers[%s].args: %q: %s", c.Name, c.Args[arg], mesh.AllowedPort)
	}
	e.port, e.mode = int32(port), mesh.ProbesUnified
	e.lbHealthPort = podspec.PortArgument[int32](c, mesh.ArgLBHealthPort)
	e.metricsPort = podspec.PortArgument[int32](c, mesh.ArgMetricsAddress)
	for _, arg := range c.Args {
		if name, ok := strings.CutPrefix(arg, meshFlag); ok {
			e.mesh = name
		}
		if mode, ok := strings.CutPrefix(arg, mesh.ArgProbesMode); ok {
			if e.mode, err = mesh.ParseProbesMode(mode); err != nil {
				return nil, fmt.Errorf("containers[%s].args: %q: %w", c.Name, arg, err)
			}
		}
	}
	e.enabled = e.port != 0 || e.mode == mesh.ProbesPerPort
	if e.table, _, err = mesh.ParseProbeTable(c.Env[env].Value); err != nil {
		return nil, fmt.Errorf("containers[%s].env: %s: %w", c.Name, mesh.EnvProbeTable, err)
	}
	return e, nil
}

// checkNamesFree returns an error if other containers or volumes have Sonde's names.
func checkNamesFree(pod *corev1.Pod) error {
	if podspec.Container(&pod.Spec, mesh.ContainerInit) != nil {
		return fmt.Errorf("containers[%s]: name is reserved for Sonde, which has not added this container", mesh.ContainerInit)
	}
	for _, v := range pod.Spec.Volumes {
		if slices.Contains([]string{mesh.VolumeIdentity, volumeWork, volumeExecHelper, volumeExecSockets}, v.Name) {
			return fmt.Errorf("spec.volumes[%s]: name is reserved for the sidecar", v.Name)
		}
	}
	return nil
}

// setTable replaces the probe table of an earlier injection in the sidecar's environment.
func (in *injection) setTable() {
	list, containers := in.sidecarList()
	at := podspec.Index(containers, mesh.ContainerSidecar)
	for i := range containers[at].Env {
		if v := &containers[at].Env[i]; v.Name == mesh.EnvProbeTable && v.Value != in.encodedTable {
			in.patch.add(fmt.Sprintf("%s/%d/env/%d/value", list, at, i), in.encodedTable)
		}
	}
}

// sidecarList returns the list with kuma-sidecar.
func (in *injection) sidecarList() (path string, containers []corev1.Container) {
	if in.form == Native {
		return pathInitContainers, in.pod.Spec.InitContainers
	}
	return pathContainers, in.pod.Spec.Containers
}

// orderContainers moves the containers of an earlier injection back to their positions, since other webhooks may have
// added containers.
func (in *injection) orderContainers() {
	spec := &in.pod.Spec
	if in.form == Native {
		first := podspec.Index(spec.InitContainers, mesh.ContainerInit)
		sidecar := podspec.Index(spec.InitContainers, mesh.ContainerSidecar)
		in.moveContainer(pathInitContainers, first, 0)
		if first > sidecar {
			sidecar++ // kuma-init now precedes it
		}
		in.moveContainer(pathInitContainers, sidecar, min(first+1, 1))
		return
	}
	in.moveContainer(pathContainers, podspec.Index(spec.Containers, mesh.ContainerSidecar), 0)
	first := podspec.Index(spec.InitContainers, mesh.ContainerInit)
	in.moveContainer(pathInitContainers, first, len(spec.InitContainers)-1)
}

// moveContainer moves a container within its list, unless from is negative.
func (in *injection) moveContainer(path string, from, to int) {
	if from >= 0 && from != to {
		in.patch.move(path+"/"+strconv.Itoa(from), path+"/"+strconv.Itoa(to))
	}
}

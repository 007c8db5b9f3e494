package source

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// PerPort are the listeners for probes of a pod in mesh.ProbesPerPort mode.
type PerPort struct {
	HTTP *mesh.Probes // nil without HTTP probes
	Own  []mesh.TCPProbe
}

// readPerPort reads the listeners from the sidecar, whose arguments and variables cannot change, unlike the pod's
// annotations. It returns nil in unified mode, and for an empty probe table.
func readPerPort(spec *corev1.PodSpec, table mesh.ProbeTable) *PerPort {
	c := podspec.Container(spec, mesh.ContainerSidecar)
	if c == nil || table == nil || !slices.Contains(c.Args, mesh.ArgProbesMode+string(mesh.ProbesPerPort)) {
		return nil
	}
	return newPerPort(table, podspec.PortArgument[uint32](c, mesh.ArgVirtualPort))
}

func newPerPort(table mesh.ProbeTable, port uint32) *PerPort {
	r := &PerPort{}
	paths := map[string]bool{}
	for _, p := range table {
		switch {
		case p.Exec != nil: // no request to a port
		case !p.WantsOwnPort() && port != 0:
			path, _, _ := strings.Cut(p.VirtualPath(), "?") // the agent evaluates the query
			if paths[path] {
				continue
			}
			paths[path] = true
			if r.HTTP == nil {
				r.HTTP = &mesh.Probes{Port: port}
			}
			number := strconv.Itoa(int(p.Port()))
			r.HTTP.Endpoints = append(r.HTTP.Endpoints, mesh.ProbeEndpoint{
				InboundPort: uint32(p.Port()), InboundPath: strings.TrimPrefix(path, "/"+number), Path: path,
			})
		case p.VirtualPort != 0:
			r.Own = append(r.Own, mesh.TCPProbe{
				Port: uint32(p.VirtualPort), InboundPort: uint32(p.Port()), Protocol: p.Protocol(),
			})
		}
	}
	return r
}

// ports returns the ports that are not redirected to Envoy's inbound listener.
func (r *PerPort) ports() (all []uint32) {
	if r.HTTP != nil {
		all = append(all, r.HTTP.Port)
	}
	for _, p := range r.Own {
		all = append(all, p.Port)
	}
	return all
}

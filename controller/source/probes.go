package source

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"iter"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"unicode"
	"unique"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/internal/cut"
	"github.com/sonde-mesh/sonde/internal/execwire"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// Bounds of the texts about a pod's probes: their number, and the bytes of each.
const (
	maxProbeTexts = 60
	maxProbeText  = 200
)

// probeSet has the texts about the probes of a pod, zero without any. Equal pods share it.
type probeSet struct {
	id uint64
	// encoded is an adminv1.ProbeSet without its ID.
	encoded unique.Handle[string]
}

// containerProbe is a probe in a pod's spec.
type containerProbe struct {
	container *corev1.Container
	kind      mesh.ProbeType
	*corev1.Probe
}

// eachProbe yields the probes of all containers but Sonde's: by container, then startup, liveness, readiness.
func eachProbe(spec *corev1.PodSpec) iter.Seq[containerProbe] {
	return func(yield func(containerProbe) bool) {
		for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
			for i := range containers {
				c := &containers[i]
				if c.Name == mesh.ContainerSidecar || c.Name == mesh.ContainerInit {
					continue
				}
				for _, p := range []containerProbe{
					{c, mesh.ProbeStartup, c.StartupProbe}, {c, mesh.ProbeLiveness, c.LivenessProbe},
					{c, mesh.ProbeReadiness, c.ReadinessProbe},
				} {
					if p.Probe != nil && !yield(p) {
						return
					}
				}
			}
		}
	}
}

// probeTable returns the probe table of a pod's sidecar, and false if the agent rejects it.
func probeTable(spec *corev1.PodSpec) (table mesh.ProbeTable, valid bool) {
	c := podspec.Container(spec, mesh.ContainerSidecar)
	if c == nil {
		return nil, true
	}
	at := slices.IndexFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == mesh.EnvProbeTable })
	if at < 0 {
		return nil, true
	}
	text := c.Env[at].Value
	if len(text) > mesh.MaxProbeTable { // no program can have a longer variable
		return nil, false
	}
	last := lastTable.Load()
	if last == nil || last.text != text {
		last = &parsedTable{text: strings.Clone(text)}
		var err error
		last.table, _, err = mesh.ParseProbeTable(text)
		last.valid = err == nil
		lastTable.Store(last)
	}
	return last.table, last.valid
}

// parsedTable is the result of parsing a probe table. It does not change.
type parsedTable struct {
	text  string
	table mesh.ProbeTable
	valid bool
}

// lastTable saves most of the time that probe tables take in a list of pods: the pods of one workload come one after
// another, with the same table.
var lastTable atomic.Pointer[parsedTable]

// probeSetOf describes the probes of the containers of a pod with a probe table.
func probeSetOf(spec *corev1.PodSpec, table mesh.ProbeTable) probeSet {
	var set adminv1.ProbeSet
	for p := range eachProbe(spec) {
		if len(set.Probes) < maxProbeTexts {
			set.Probes = append(set.Probes, probeText(p.container.Name, p.kind, p.Probe, table))
		}
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(&set)
	if err != nil || len(set.Probes) == 0 { // an error is a container's name that the API server rejects
		return probeSet{}
	}
	// A tenant cannot find a set with the ID of another namespace's.
	sum := sha256.Sum256(encoded)
	return probeSet{max(binary.BigEndian.Uint64(sum[:]), 1), unique.Make(string(encoded))}
}

// probeText describes a probe. The webhook changes its handler, timeout and threshold, and keeps its period.
func probeText(container string, kind mesh.ProbeType, p *corev1.Probe, table mesh.ProbeTable) *adminv1.ProbeText {
	period, timeout, failures := cmp.Or(p.PeriodSeconds, 10), cmp.Or(p.TimeoutSeconds, 1), cmp.Or(p.FailureThreshold, 3)
	now := textOf(handlerText(&p.ProbeHandler), timing(period, timeout, failures))
	text := &adminv1.ProbeText{Container: container, Probe: string(kind), Written: now, Kubelet: now}
	original := originalOf(table, container, kind, &p.ProbeHandler)
	if original == nil {
		if then, is := startsHelper(table, container, &p.ProbeHandler); is && len(then) == 0 {
			text.Written = "none: Sonde has added this probe, which starts its helper for the exec probe"
		} else if is {
			user := mesh.Probe{Exec: &mesh.ExecProbe{Command: then}}
			text.Written = textOf(user.Written(""), timing(period, timeout, failures))
		}
		return text
	}
	asks, ends := original.Request(original.Port()), fmt.Sprintf(", timeout %ds", original.TimeoutSeconds)
	switch {
	case original.Guarded:
		failures = original.FailureThreshold
		ends += fmt.Sprintf(", fails after %d, guarded", failures)
	case original.Redirected():
		asks, ends = fmt.Sprintf("nothing: the kernel redirects the connection to :%d", original.Port()), ""
	}
	text.Written = textOf(original.Written(fmt.Sprintf(":%d", original.Port())),
		timing(period, original.TimeoutSeconds, failures))
	text.Agent = textOf(asks, ends)
	return text
}

func timing(period, timeout, failures int32) string {
	return fmt.Sprintf(" every %ds, timeout %ds, fails after %d", period, timeout, failures)
}

// textOf returns a user's text in one line, shortened so that the end fits.
func textOf(users, end string) string {
	line := strings.Join(strings.FieldsFunc(users, unicode.IsControl), " ")
	return cut.Marked(line, maxProbeText-len(end)) + end
}

// originalOf returns the entry of the probe table from which the webhook has made a probe, nil if the agent does not
// answer the probe.
func originalOf(table mesh.ProbeTable, container string, kind mesh.ProbeType, now *corev1.ProbeHandler) *mesh.Probe {
	i := slices.IndexFunc(table, func(p mesh.Probe) bool {
		return p.Container == container && p.Type == kind && isRewritten(&p, now)
	})
	if i < 0 {
		return nil
	}
	return &table[i]
}

// isRewritten reports whether a handler is how the webhook rewrites an entry of the probe table.
func isRewritten(p *mesh.Probe, now *corev1.ProbeHandler) bool {
	switch {
	case p.VirtualPort != 0 && now.TCPSocket != nil:
		return now.TCPSocket.Port == intstr.FromInt32(p.VirtualPort)
	case p.VirtualPort != 0:
		return now.GRPC != nil && now.GRPC.Port == p.VirtualPort
	}
	get := now.HTTPGet
	return get != nil && p.ID != "" && get.Path == p.VirtualPath() &&
		slices.Equal(get.HTTPHeaders, []corev1.HTTPHeader{{Name: mesh.ProbeHeader, Value: p.ID}})
}

// startsHelper reports whether a probe starts the helper for a guarded exec probe of its container, and returns the
// user's own command, which runs after that.
func startsHelper(table mesh.ProbeTable, container string, now *corev1.ProbeHandler) (then []string, is bool) {
	if now.Exec == nil || len(now.Exec.Command) == 0 || path.Base(now.Exec.Command[0]) != execwire.Program ||
		!slices.ContainsFunc(table, func(p mesh.Probe) bool { return p.Container == container && p.Exec != nil }) {
		return nil, false
	}
	mode, start, err := execwire.Parse(now.Exec.Command[1:])
	return start.Then, err == nil && mode == execwire.ModeStart
}

// handlerText returns a handler in one line, as mesh.Probe.Written.
func handlerText(h *corev1.ProbeHandler) string {
	at := func(host string, port intstr.IntOrString) string { return host + ":" + port.String() }
	switch {
	case h.HTTPGet != nil:
		get := &mesh.HTTPGetProbe{Path: h.HTTPGet.Path, Scheme: string(h.HTTPGet.Scheme)}
		if h.HTTPGet.Protocol != nil {
			get.Protocol = string(*h.HTTPGet.Protocol)
		}
		return mesh.Probe{HTTPGet: get}.Written(at(h.HTTPGet.Host, h.HTTPGet.Port))
	case h.TCPSocket != nil:
		return mesh.Probe{TCPSocket: &mesh.TCPSocketProbe{}}.Written(at(h.TCPSocket.Host, h.TCPSocket.Port))
	case h.GRPC != nil:
		check := &mesh.GRPCProbe{}
		if h.GRPC.Service != nil {
			check.Service = *h.GRPC.Service
		}
		if h.GRPC.Mode != nil {
			check.Mode = string(*h.GRPC.Mode)
		}
		return mesh.Probe{GRPC: check}.Written(at("", intstr.FromInt32(h.GRPC.Port)))
	case h.Exec != nil:
		return mesh.Probe{Exec: &mesh.ExecProbe{Command: h.Exec.Command}}.Written("")
	}
	return "of a kind that this release does not support"
}

// ProbesOf returns the texts about the probes of a pod by the name of its Dataplane, nil if they are unknown.
func (s *Source) ProbesOf(dataplane string) *adminv1.ProbeSet {
	namespace, name, _ := mesh.ObjectOf(dataplane)
	p := s.pods.Get(watch.Key{Namespace: namespace, Name: name})
	if p == nil || p.Probes.id == 0 {
		return nil
	}
	set := &adminv1.ProbeSet{}
	if err := proto.Unmarshal([]byte(p.Probes.encoded.Value()), set); err != nil {
		return nil // impossible: it is encoded here
	}
	set.Id = p.Probes.id
	return set
}

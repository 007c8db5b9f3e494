package migrate

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// Mode says which mesh answers the probes of a pod, and how.
type Mode string

// Modes of a pod, in the order of tables.
const (
	Unified          Mode = "sonde-unified"
	PerPort          Mode = "sonde-per-port"
	Unrewritten      Mode = "sonde-not-rewritten"
	KumaVirtual      Mode = "kuma-virtual-probes"          // an Envoy listener for httpGet probes, Kuma up to 2.8
	KumaProxy        Mode = "kuma-application-probe-proxy" // a port of kuma-dp for all probes, Kuma from 2.9 on
	KumaUnrewritten  Mode = "kuma-not-rewritten"
	Istio            Mode = "istio"
	IstioUnrewritten Mode = "istio-not-rewritten"
	None             Mode = "none"    // no sidecar of Sonde, Kuma or Istio
	Unknown          Mode = "unknown" // no pod exists, or the pod has an unsupported mode
	Mixed            Mode = "mixed"   // the pods of a workload have different modes
)

// Modes returns all modes of pods, in the order of tables.
func Modes() []Mode {
	return []Mode{
		Unified, PerPort, Unrewritten, KumaVirtual, KumaProxy, KumaUnrewritten, Istio, IstioUnrewritten, None, Unknown,
	}
}

// ofSonde reports whether the mode is one of Sonde's.
func (m Mode) ofSonde() bool { return m == Unified || m == PerPort || m == Unrewritten }

// ofKuma reports whether the mode is one of Kuma's.
func (m Mode) ofKuma() bool { return m == KumaVirtual || m == KumaProxy || m == KumaUnrewritten }

// Names that the injectors of other meshes write.
// Source: kuma pkg/plugins/runtime/k8s/metadata/annotations.go (2.7, 2.9); istio pkg/kube/inject; istio.io/api
// annotation.
const (
	kumaProxyConfig    = mesh.TrafficPrefix + "transparent-proxy-config"
	istioSidecar       = "istio-proxy"
	istioInit          = "istio-init"
	istioProbers       = "ISTIO_KUBE_APP_PROBERS"
	istioRewrite       = "sidecar.istio.io/rewriteAppHTTPProbers"
	istioStatusPort    = "status.sidecar.istio.io/port"
	istioInterception  = "sidecar.istio.io/interceptionMode"
	istioInclude       = "traffic.sidecar.istio.io/includeInboundPorts"
	istioExclude       = "traffic.sidecar.istio.io/excludeInboundPorts"
	istioRevision      = "istio.io/rev"
	istioDefaultStatus = 15020
)

// sidecar describes a pod's sidecar.
type sidecar struct {
	mode Mode
	// meshes are all meshes with a sidecar in the pod. mode and the other fields describe the first one.
	meshes []string
	// port at which the mesh answers rewritten probes, 0 for none.
	port int32
	// lbPort is the port at which Sonde's agent answers load balancers in plaintext, 0 for none.
	lbPort int32
	// redirected means that the sidecar gets incoming connections, except to excluded ports.
	redirected bool
	// included are the only redirected ports, nil for all.
	included []int32
	// excluded maps ports that are not redirected to the setting that excludes them.
	excluded map[int32]string
}

// captures reports whether the sidecar gets connections to a port.
func (s *sidecar) captures(port int32) bool {
	return s.redirected && s.excluded[port] == "" && (s.included == nil || slices.Contains(s.included, port))
}

func (s *sidecar) exclude(list, by string) {
	for _, port := range ports(list) {
		if s.excluded[port] == "" {
			s.excluded[port] = by
		}
	}
}

// sidecarOf describes a pod's sidecar. Kuma's containers have the same names as Sonde's, but only Sonde adds its
// volume.
func sidecarOf(pod *corev1.Pod) *sidecar {
	s := &sidecar{mode: None, excluded: map[int32]string{}}
	s.meshes = meshesOf(pod)
	if len(s.meshes) == 0 {
		return s
	}
	switch s.meshes[0] {
	case meshSonde:
		s.readSonde(pod)
	case podspec.Kuma:
		s.readKuma(pod)
	case podspec.Istio:
		s.readIstio(pod)
	}
	return s
}

const meshSonde = "Sonde"

// meshesOf returns the meshes with a sidecar in a pod, Sonde first.
func meshesOf(pod *corev1.Pod) (all []string) {
	kumas := 0 // containers named like Kuma's sidecar that are not Sonde's
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name == mesh.ContainerSidecar {
			kumas++
		}
	}
	if podspec.IsInjected(&pod.Spec) {
		all = append(all, meshSonde)
		kumas--
	}
	if kumas > 0 {
		all = append(all, podspec.Kuma)
	}
	if podspec.Container(&pod.Spec, istioSidecar) != nil {
		all = append(all, podspec.Istio)
	}
	for _, f := range podspec.Foreigners(pod) {
		if f.Mesh != podspec.Kuma && f.Mesh != podspec.Istio { // pods of these two record their probes in their containers
			all = append(all, f.Mesh)
		}
	}
	return all
}

func (s *sidecar) readSonde(pod *corev1.Pod) {
	s.redirected, s.mode = !podspec.IsGateway(&pod.Spec), Unified
	if asked, ok := pod.Annotations[mesh.AnnotationVirtualProbesMode]; ok {
		switch mode, err := mesh.ParseProbesMode(asked); {
		case err != nil:
			s.mode = Unknown
		case mode == mesh.ProbesPerPort:
			s.mode = PerPort
		}
	}
	if c := podspec.Container(&pod.Spec, mesh.ContainerSidecar); c != nil {
		port, _ := argument(c, strings.TrimSuffix(mesh.ArgVirtualPort, "="))
		mode, _ := argument(c, strings.TrimSuffix(mesh.ArgProbesMode, "="))
		if port == "0" && mode != string(mesh.ProbesPerPort) {
			s.mode = Unrewritten
		}
	}
	s.exclude(pod.Annotations[mesh.AnnotationExcludeInboundPorts], mesh.AnnotationExcludeInboundPorts)
	s.lbPort = portOf(pod.Annotations[mesh.AnnotationLBHealthPort])
}

// readKuma decides like kuma-dp and the injector of 2.9: the probe proxy takes precedence over the listener for virtual
// probes.
func (s *sidecar) readKuma(pod *corev1.Pod) {
	s.mode = KumaUnrewritten
	if port := portOf(pod.Annotations[mesh.AnnotationProbeProxyPort]); port != 0 {
		s.mode, s.port = KumaProxy, port
	} else if port := portOf(pod.Annotations[mesh.AnnotationVirtualProbesPort]); port != 0 &&
		enabled(pod.Annotations[mesh.AnnotationVirtualProbes]) {
		s.mode, s.port = KumaVirtual, port
	}
	s.redirected = !enabled(pod.Annotations[mesh.AnnotationGateway])
	s.exclude(pod.Annotations[mesh.AnnotationExcludeInboundPorts], mesh.AnnotationExcludeInboundPorts)
	text := pod.Annotations[kumaProxyConfig]
	if c := podspec.Container(&pod.Spec, mesh.ContainerInit); c != nil {
		if config, ok := argument(c, "--config"); ok && text == "" {
			text = config
		}
		if value, _ := argument(c, "--redirect-inbound"); value == "false" {
			s.redirected = false
		}
		list, _ := argument(c, "--exclude-inbound-ports")
		s.exclude(list, "containers["+mesh.ContainerInit+"].args")
	}
	s.readKumaConfig(text)
	delete(s.excluded, s.port)
}

// readKumaConfig reads the configuration of Kuma's redirection, which replaces arguments since 2.9. If it is the path
// of a file, the annotation has the same configuration.
func (s *sidecar) readKumaConfig(text string) {
	var config struct {
		Redirect struct {
			Inbound struct {
				Enabled      *bool   `json:"enabled"`
				ExcludePorts []int32 `json:"excludePorts"`
			} `json:"inbound"`
		} `json:"redirect"`
	}
	if yaml.Unmarshal([]byte(text), &config) != nil {
		return
	}
	inbound := config.Redirect.Inbound
	s.redirected = s.redirected && (inbound.Enabled == nil || *inbound.Enabled)
	for _, port := range inbound.ExcludePorts {
		s.exclude(strconv.Itoa(int(port)), kumaProxyConfig)
	}
}

// readIstio reads the arguments of istio-init, or with the CNI plugin the annotations that the plugin reads.
func (s *sidecar) readIstio(pod *corev1.Pod) {
	s.mode = IstioUnrewritten
	rewrites := slices.ContainsFunc(podspec.Container(&pod.Spec, istioSidecar).Env, func(v corev1.EnvVar) bool {
		return v.Name == istioProbers
	})
	if on, err := strconv.ParseBool(pod.Annotations[istioRewrite]); rewrites || err == nil && on {
		s.mode, s.port = Istio, cmp.Or(portOf(pod.Annotations[istioStatusPort]), istioDefaultStatus)
	}
	s.redirected = pod.Annotations[istioInterception] != "NONE"
	include, limited := pod.Annotations[istioInclude]
	exclude, by := pod.Annotations[istioExclude], istioExclude
	if c := podspec.Container(&pod.Spec, istioInit); c != nil {
		if list, ok := argument(c, "-b"); ok {
			include, limited = list, true
		}
		list, ok := argument(c, "-d")
		if ok && exclude == "" {
			exclude, by = list, "containers["+istioInit+"].args"
		}
	}
	if limited && include != "*" {
		s.included = append([]int32{}, ports(include)...)
	}
	s.exclude(exclude, by)
}

// argument returns the value of a flag, after = or as the next argument, and whether the flag is set.
func argument(c *corev1.Container, flag string) (string, bool) {
	words := slices.Concat(c.Command, c.Args)
	for i, word := range words {
		if value, ok := strings.CutPrefix(word, flag+"="); ok {
			return value, true
		}
		if word == flag && i+1 < len(words) {
			return words[i+1], true
		}
	}
	return "", false
}

// enabled reports whether a boolean setting of Kuma is on.
func enabled(value string) bool { return slices.Contains([]string{"enabled", "true", "yes"}, value) }

// portOf returns the port in a text, 0 for anything else.
func portOf(text string) int32 {
	port, _ := mesh.ParsePort[int32](strings.TrimSpace(text))
	return port
}

// ports returns the ports in a list. It ignores invalid entries, which no mesh uses and the webhook rejects.
func ports(list string) []int32 {
	all, _ := mesh.ParsePorts[int32](list)
	return all
}

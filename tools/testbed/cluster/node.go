package cluster

import (
	"bytes"
	"context"
	_ "embed" // the template of containerd's configuration
	"fmt"
	"path/filepath"
	"text/template"

	"github.com/sonde-mesh/sonde/tools/testbed/machine"
)

//go:embed containerd.toml
var containerdText string

var containerdTemplate = template.Must(template.New("containerd.toml").Parse(containerdText))

// writeNode writes the configuration files of a node's programs.
func (c *Cluster) writeNode(node int, families []family, paths machine.Paths) error {
	name := nodeName(node)
	if err := c.writeKubeconfig(name, families); err != nil {
		return err
	}
	toml, err := c.containerdConfig(node, paths)
	if err != nil {
		return err
	}
	if err := writeFile(c.path(name, "containerd.toml"), toml, 0o644); err != nil {
		return err
	}
	for file, value := range map[string]any{
		filepath.Join(c.nodeDirectories(node)[cniDirectory], "10-pods.conflist"): c.cniConfig(node, families),
		c.path(name, "kubelet.json"): c.kubeletConfig(node, families),
		c.path(name, "proxy.json"):   c.proxyConfig(node, families),
	} {
		if err := c.writeJSON(file, value); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) containerdConfig(node int, paths machine.Paths) ([]byte, error) {
	var text bytes.Buffer
	err := containerdTemplate.Execute(&text, struct{ State, Run, Socket, Runc, Plugins, OwnPlugins, PauseImage string }{
		c.path(nodeName(node)), c.run(nodeName(node)), c.socket(node), paths.Runc, paths.Plugins, ownPlugins, pauseImage,
	})
	return text.Bytes(), err
}

// cniConfig connects each pod by its own link, so that the node also routes between its pods: with a bridge, responses
// would bypass connection tracking, which must translate them back to the address of a Service.
func (c *Cluster) cniConfig(node int, families []family) any {
	var ranges, routes []any
	plugins := []any{}
	for _, f := range families {
		ranges = append(ranges, []any{map[string]any{"subnet": f.podRange(node).String()}})
		routes = append(routes, map[string]any{"dst": f.all.String()})
		if f == familyIPv6 {
			// Duplicate address detection would delay each pod by 1 to 2 s. A plugin disables it before the interface exists.
			// That plugin needs a previous result, so loopback comes first.
			plugins = append(plugins, map[string]any{"type": "loopback"},
				map[string]any{"type": "tuning", "sysctl": map[string]any{"net.ipv6.conf.default.accept_dad": "0"}})
		}
	}
	plugins = append(plugins, map[string]any{"type": "ptp", "ipam": map[string]any{
		"type": "host-local", "ranges": ranges, "routes": routes,
	}}, map[string]any{"type": "portmap", "capabilities": map[string]any{"portMappings": true}})
	return map[string]any{"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}
}

func (c *Cluster) kubeletConfig(node int, families []family) any {
	var dns []string
	for _, f := range families {
		dns = append(dns, f.dns.String())
	}
	name := nodeName(node)
	return map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"address":                  families[len(families)-1].any.String(),
		"containerRuntimeEndpoint": "unix://" + c.socket(node),
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               "/" + c.cgroup(node), // the kubelet kills unknown pods below this cgroup
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"enforceNodeAllocatable":   []string{},
		"makeIPTablesUtilChains":   false,
		// A nearly full disk must not make kubelets evict pods and delete images.
		"evictionHard":                map[string]any{"imagefs.available": "64Mi", "nodefs.available": "64Mi"},
		"imageGCHighThresholdPercent": 100,
		"resolvConf":                  "", // not the machine's file: the cluster has no access to other networks
		"clusterDomain":               "cluster.local",
		"clusterDNS":                  dns,
		"staticPodPath":               c.path(name, "manifests"),
		"tlsCertFile":                 c.certificateFile(name),
		"tlsPrivateKeyFile":           c.keyFile(name),
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": false},
			"x509": map[string]any{"clientCAFile": c.certificateFile("ca")},
		},
		"authorization":             map[string]any{"mode": "AlwaysAllow"}, // any client with a kubelet's certificate
		"nodeStatusUpdateFrequency": "4s",
		"nodeLeaseDurationSeconds":  10,
	}
}

func (c *Cluster) proxyConfig(node int, families []family) any {
	return map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables",
		"clientConnection": map[string]any{"kubeconfig": c.kubeconfig("proxy")},
		"clusterCIDR":      joined(families, func(f family) fmt.Stringer { return f.pods }),
		"hostnameOverride": nodeName(node),
		// The limit of connection tracking applies to the whole machine; timeouts apply to the node.
		"conntrack": map[string]any{"maxPerCore": 0},
	}
}

// containerdProcess returns a node's containerd.
func (c *Cluster) containerdProcess(binaries string, node int) process {
	return process{Name: fmt.Sprintf("containerd%d", node), Node: node, Command: []string{
		filepath.Join(binaries, "containerd"), "--config=" + c.path(nodeName(node), "containerd.toml"),
	}}
}

// nodeProcesses returns a node's processes except containerd. The kubelet of a node in a zone sets the node's label.
func (c *Cluster) nodeProcesses(binaries string, node int, zone string, families []family) []process {
	name := nodeName(node)
	kubelet := []string{
		filepath.Join(binaries, "kubelet"), "--config=" + c.path(name, "kubelet.json"), "--kubeconfig=" + c.kubeconfig(name),
		"--hostname-override=" + name,
		"--node-ip=" + joined(families, func(f family) fmt.Stringer { return f.nodeAddress(node) }),
	}
	if zone != "" {
		kubelet = append(kubelet, "--node-labels="+ZoneLabel+"="+zone)
	}
	return []process{
		{Name: fmt.Sprintf("kubelet%d", node), Node: node, Command: kubelet},
		{Name: fmt.Sprintf("proxy%d", node), Node: node, Command: []string{
			filepath.Join(binaries, "kube-proxy"), "--config=" + c.path(name, "proxy.json"),
		}},
	}
}

// ctr runs containerd's client on a node, in the namespace of Kubernetes.
func (c *Cluster) ctr(ctx context.Context, binaries string, node int, args ...string) error {
	_, err := machine.Run(ctx, "", filepath.Join(binaries, "ctr"),
		append([]string{"--address=" + c.socket(node), "--namespace=k8s.io"}, args...)...)
	return err
}

// containerdReady returns nil when a node's containerd answers.
func (c *Cluster) containerdReady(ctx context.Context, binaries string, node int) error {
	return c.ctr(ctx, binaries, node, "version")
}

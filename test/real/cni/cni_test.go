package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cni"
	"github.com/sonde-mesh/sonde/cni/plugin"
	"github.com/sonde-mesh/sonde/cni/wire"
	"github.com/sonde-mesh/sonde/dpagent/redirect"
	"github.com/sonde-mesh/sonde/internal/testing/redirecttest"
	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestMain runs the plugin if a container runtime started this program.
func TestMain(m *testing.M) {
	if os.Getenv("CNI_COMMAND") != "" {
		skel.PluginMainFuncs(plugin.Funcs(wire.Ask, os.Stderr), version.All, "")
		return
	}
	slowtest.SkipAll(m, "network namespaces")
	os.Exit(m.Run())
}

// base is a plugin that sets up the network of a pod.
const base = "#!/bin/sh\n" + `[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"1.0.0","ips":[{"address":"192.0.2.2/24"}],"dns":{}}'; exit 0` + "\n"

const network = `{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"base"}]}`

// node is a node with a container runtime and a daemon.
type node struct {
	t       *testing.T
	api     *apiServer
	options cni.Options
	runtime *libcni.CNIConfig
	names   map[string]string // network namespaces of pods, by name
	end     func() error      // stops the daemon
}

func newNode(t *testing.T) *node {
	t.Helper()
	redirecttest.New(t) // skips the test without root
	n := &node{t: t, api: newAPIServer(t), names: map[string]string{}}
	itself, err := os.Executable()
	must.Do(t, err)
	directory := t.TempDir()
	n.options = cni.Options{
		Node: "node1", Namespace: "sonde-system", DaemonSet: "sonde-cni", Kubeconfig: n.api.kubeconfig(t), Socket: filepath.Join(directory, "d.sock"),
		ConfigDir: filepath.Join(directory, "net.d"), PluginDir: filepath.Join(directory, "bin"), CacheDir: filepath.Join(directory, "cache"), Plugin: itself,
		HealthAddress: "127.0.0.1:0", Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	must.Do(t, errors.Join(os.Mkdir(n.options.ConfigDir, 0o755), os.Mkdir(n.options.PluginDir, 0o755)))
	must.Do(t, os.WriteFile(filepath.Join(n.options.PluginDir, "base"), []byte(base), 0o755))
	n.write(network)
	n.runtime = libcni.NewCNIConfigWithCacheDir([]string{n.options.PluginDir}, n.options.CacheDir, nil)
	return n
}

func (n *node) configFile() string { return filepath.Join(n.options.ConfigDir, "10-pods.conflist") }

func (n *node) write(text string) {
	n.t.Helper()
	must.Do(n.t, os.WriteFile(n.configFile(), []byte(text), 0o644))
}

func (n *node) config() string {
	n.t.Helper()
	text, err := os.ReadFile(n.configFile())
	must.Do(n.t, err)
	return string(text)
}

// start starts the daemon, and waits until the plugin is installed.
func (n *node) start() {
	n.t.Helper()
	d, err := cni.New(n.t.Context(), n.options)
	must.Do(n.t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(n.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	n.end = func() error {
		cancel()
		n.end = func() error { return nil }
		return <-ended
	}
	n.t.Cleanup(func() { _ = n.end() })
	n.waitInstalled()
}

func (n *node) waitInstalled() {
	n.t.Helper()
	must.Poll(n.t, "the plugin in the configuration", func(context.Context) error {
		if !strings.Contains(n.config(), `"sonde-cni"`) {
			return errors.New(n.config())
		}
		return nil
	})
}

// pod creates a pod at the API server, and its network namespace.
func (n *node) pod(name string, inMesh bool) {
	n.t.Helper()
	n.api.add(name, inMesh)
	must.Do(n.t, redirecttest.New(n.t).Do(func() error {
		n.names[name] = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		return nil
	}))
}

// add has the container runtime create the sandbox of a pod.
func (n *node) add(name string) error {
	n.t.Helper()
	list, err := libcni.ConfListFromFile(n.configFile())
	must.Do(n.t, err)
	_, err = n.runtime.AddNetworkList(n.t.Context(), list, n.sandbox(name))
	return err
}

// deleteAsCRIO deletes the network of a pod with the configuration that it started with. Source: cri-o/ocicni
// pkg/ocicni/ocicni.go, TearDownPodWithContext and forEachNetwork.
func (n *node) deleteAsCRIO(name string) error {
	n.t.Helper()
	text, sandbox, err := n.runtime.GetNetworkListCachedConfig(&libcni.NetworkConfigList{Name: "pods"}, n.sandbox(name))
	must.Do(n.t, err)
	list, err := libcni.ConfListFromBytes(text)
	must.Do(n.t, err)
	if !slices.ContainsFunc(list.Plugins, func(p *libcni.PluginConfig) bool { return p.Network.Type == "sonde-cni" }) {
		n.t.Fatalf("%s started without the plugin: %s", name, text)
	}
	return n.runtime.DelNetworkList(n.t.Context(), list, sandbox)
}

func (n *node) sandbox(name string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: "sandbox-" + name, NetNS: n.names[name], IfName: "eth0", Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", name}, {"K8S_POD_INFRA_CONTAINER_ID", "sandbox-" + name}, {"K8S_POD_UID", uidOf(name)},
	}}
}

// isRedirected returns nil if a pod has the redirection rules of the mesh.
func (n *node) isRedirected(name string) error {
	f, err := os.Open(n.names[name])
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	r, err := mesh.ParseRedirection(redirection)
	if err != nil {
		return err
	}
	differences, err := redirect.CheckIn(int(f.Fd()), redirect.Of(&r))
	if len(differences) > 0 {
		err = errors.New(strings.Join(differences, "; "))
	}
	return err
}

// TestADD starts pods with a container runtime while the daemon runs.
func TestADD(t *testing.T) {
	n := newNode(t)
	n.start()
	if info, err := os.Stat(n.options.Socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v, want mode 0600", info, err)
	}
	n.pod("web", true)
	n.pod("other", false)
	for _, name := range []string{"web", "other"} {
		if err := n.add(name); err != nil {
			t.Errorf("ADD %s: %v", name, err)
		}
	}
	if err := n.isRedirected("web"); err != nil {
		t.Error(err)
	}
	if err := n.isRedirected("other"); err == nil || !strings.Contains(err.Error(), "table inet sonde is missing") {
		t.Errorf("a pod that is not of the mesh: %v", err)
	}
	list, err := libcni.ConfListFromFile(n.configFile())
	must.Do(t, err)
	if err := n.runtime.CheckNetworkList(t.Context(), list, n.sandbox("web")); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	must.Do(t, n.api.waitCondition(t, "True"))
}

// TestDaemonAway starts pods while no daemon runs. The next daemon repairs these pods in place.
func TestDaemonAway(t *testing.T) {
	n := newNode(t)
	n.start()
	must.Do(t, n.end())
	if !strings.Contains(n.config(), "sonde-cni") {
		t.Fatal("a daemon that is replaced has taken its entry out")
	}
	var names []string
	for i := range 5 {
		name := fmt.Sprintf("web-%d", i)
		names = append(names, name)
		n.pod(name, true)
		if err := n.add(name); err != nil {
			t.Errorf("ADD %s without a daemon: %v", name, err)
		}
		if n.isRedirected(name) == nil {
			t.Errorf("%s is redirected without a daemon", name)
		}
	}
	n.write(network) // another program has rewritten the configuration meanwhile
	n.pod("late", true)
	names = append(names, "late")
	if err := n.add("late"); err != nil {
		t.Errorf("ADD without the plugin: %v", err)
	}
	n.start()
	for _, name := range names {
		must.Poll(t, name+" to be repaired", func(context.Context) error { return n.isRedirected(name) })
	}
}

// TestConfigurationRewritten has another program write the configuration while the daemon runs.
func TestConfigurationRewritten(t *testing.T) {
	n := newNode(t)
	n.start()
	n.write(strings.Replace(network, `"pods"`, `"pods","x":1`, 1))
	n.waitInstalled()
	if !strings.Contains(n.config(), `"x": 1`) {
		t.Errorf("the configuration is %s", n.config())
	}
}

// TestUninstalled deletes the DaemonSet. Running pods keep their rules, other pods start without the plugin, and CRI-O
// can delete the network of a pod that started with it.
func TestUninstalled(t *testing.T) {
	n := newNode(t)
	n.start()
	n.pod("web", true)
	must.Do(t, n.add("web"))
	n.api.deleteDaemonSet()
	must.Do(t, n.end())
	if strings.Contains(n.config(), "sonde-cni") {
		t.Errorf("the configuration is %s", n.config())
	}
	if err := n.isRedirected("web"); err != nil {
		t.Errorf("a pod that runs: %v", err)
	}
	n.pod("next", false)
	must.Do(t, n.add("next"))
	must.Do(t, n.deleteAsCRIO("web"))
	must.Do(t, n.api.waitCondition(t, "False"))
}

// TestUninstalledWithItsAccount deletes the daemon's account first, as Helm does. The daemon stops before it is told
// that the DaemonSet is deleted, too.
func TestUninstalledWithItsAccount(t *testing.T) {
	n := newNode(t)
	n.start()
	n.api.deleteAccount()
	must.Do(t, n.end())
	if strings.Contains(n.config(), "sonde-cni") {
		t.Errorf("the configuration is %s", n.config())
	}
}

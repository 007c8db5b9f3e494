// Package cluster runs a Kubernetes cluster on this machine: each node is a network namespace with its own kubelet,
// kube-proxy and containerd, and the first node also has the control plane.
package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/tools/cache"
	"github.com/sonde-mesh/sonde/tools/testbed/machine"
)

const (
	maxNodes = 20
	// idPrefix is the prefix of all names that a cluster creates on the machine.
	idPrefix = "sonde-"
)

// Cluster is the cluster of a state directory, running or not. Each directory can have one.
type Cluster struct {
	// state is the state directory, absolute.
	state string
	// id distinguishes this cluster's namespaces, cgroups and sockets from other clusters'.
	id string
	// out gets a line for each step.
	out io.Writer
}

// description is the content of the file about a started cluster.
type description struct {
	Nodes    int      `json:"nodes"`
	IPFamily IPFamily `json:"ipFamily"`
	// Binaries is the directory of the programs.
	Binaries string `json:"binaries"`
	// Complete means that all processes have started.
	Complete bool `json:"complete"`
}

// New returns the cluster of a state directory, which need not exist.
func New(state string, out io.Writer) (*Cluster, error) {
	state, err := filepath.Abs(state)
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256([]byte(state))
	return &Cluster{state: state, id: idPrefix + hex.EncodeToString(digest[:3]), out: out}, nil
}

// DefaultState returns $XDG_STATE_HOME/sonde/testbed, or ~/.local/state/sonde/testbed.
func DefaultState() (string, error) {
	base := os.Getenv("XDG_STATE_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("find the state directory (set XDG_STATE_HOME or HOME): %w", err)
		}
		base = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(base, "sonde", "testbed"), nil
}

// path returns a path in the state directory.
func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.state}, elements...)...)
}

// run returns a path in the directory of sockets and mounts, which has a short name because paths of sockets are
// limited.
func (c *Cluster) run(elements ...string) string {
	return filepath.Join(append([]string{"/run", c.id}, elements...)...)
}

// nodeName is the name of a node in Kubernetes.
func nodeName(node int) string { return "node" + strconv.Itoa(node) }

// namespace is the network namespace of a node.
func (c *Cluster) namespace(node int) string { return c.id + "-" + nodeName(node) }

// namespaces is the directory of a node's other namespaces.
func (c *Cluster) namespaces(node int) string { return c.run(nodeName(node)) }

// nodeDirectories maps fixed directories of kubelet, containerd and CNI to the node's own ones, which replace them in
// its mount namespace.
func (c *Cluster) nodeDirectories(node int) map[string]string {
	directories := map[string]string{}
	for _, d := range sharedDirectories {
		directories[d] = c.path(nodeName(node), strings.ReplaceAll(strings.TrimPrefix(d, "/"), "/", "-"))
	}
	return directories
}

// cniDirectory is the directory of the CNI configuration.
const cniDirectory = "/etc/cni/net.d"

// ownPlugins is a node's own directory of CNI plugins.
const ownPlugins = "/var/lib/cni/bin"

var sharedDirectories = []string{
	cniDirectory, "/run/sonde-cni", "/var/lib/cni", "/var/lib/kubelet", "/var/log/containers", "/var/log/pods",
}

// cgroup is the path of the cgroup of a node's pods. Only this cluster uses cgroups below it.
func (c *Cluster) cgroup(node int) string { return c.id + "/" + nodeName(node) }

// socket returns the socket of a node's containerd.
func (c *Cluster) socket(node int) string { return c.run(nodeName(node), "containerd.sock") }

// lock prevents other commands from starting or stopping the cluster.
func (c *Cluster) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(c.state), 0o755); err != nil {
		return nil, err
	}
	path := c.state + ".lock" // not in the directory, which `down` removes
	brief, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if unlock, err = cache.Lock(brief, path); err == nil {
		return unlock, nil
	}
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		return nil, err
	}
	c.say("waiting for another command that starts or ends this cluster")
	return cache.Lock(ctx, path)
}

func (c *Cluster) describe(d description) error {
	return c.writeJSON(c.path("cluster.json"), d)
}

// description returns the description of the started cluster. The error is fs.ErrNotExist without one.
func (c *Cluster) description() (description, error) {
	var d description
	text, err := os.ReadFile(c.path("cluster.json"))
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return d, fmt.Errorf("read %s: %w", c.path("cluster.json"), err)
	}
	return d, nil
}

// complete returns the description of a running cluster, otherwise an error with advice.
func (c *Cluster) complete() (description, error) {
	d, err := c.description()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return d, fmt.Errorf("there is no cluster in %s: `%s` starts one", c.state, c.target("cluster-up"))
	case err != nil:
		return d, err
	case !d.Complete:
		return d, fmt.Errorf("the cluster in %s has not come up: `%s` starts it anew", c.state, c.target("cluster-up"))
	}
	return d, nil
}

// target returns the command line for a target of the Makefile with this cluster.
func (c *Cluster) target(name string) string {
	if standard, err := DefaultState(); err == nil && standard == c.state {
		return "make " + name
	}
	return "make " + name + " STATE=" + c.state
}

// checkNode returns an error for an unknown node.
func (d description) checkNode(node int) error {
	if node < 1 || node > d.Nodes {
		return fmt.Errorf("there is no node %d: the cluster has nodes 1 to %d", node, d.Nodes)
	}
	return nil
}

// kubectl runs kubectl as the cluster's administrator.
func (c *Cluster) kubectl(ctx context.Context, stdin string, args ...string) error {
	d, err := c.description()
	if err != nil {
		return err
	}
	command := machine.Enter(c.namespace(1), "", append([]string{
		filepath.Join(d.Binaries, "kubectl"), "--kubeconfig", c.kubeconfig("admin"),
	}, args...)...)
	_, err = machine.Run(ctx, stdin, command[0], command[1:]...)
	return err
}

// writeJSON writes a file atomically.
func (c *Cluster) writeJSON(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(path, append(text, '\n'), 0o600)
}

// writeFile writes a file atomically, and creates its directory if necessary.
func writeFile(path string, text []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", text, mode); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (c *Cluster) say(format string, args ...any) { _, _ = fmt.Fprintf(c.out, format+"\n", args...) }

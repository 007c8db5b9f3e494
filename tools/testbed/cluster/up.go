package cluster

import (
	"bytes"
	"context"
	_ "embed" // the manifests of CoreDNS
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"text/template"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/tools/testbed/binaries"
	"github.com/sonde-mesh/sonde/tools/testbed/machine"
)

// startTimeout is how long each step of the start may take, on a busy machine too.
const startTimeout = 3 * time.Minute

//go:embed dns.yaml
var dnsText string

var dnsTemplate = template.Must(template.New("dns.yaml").Parse(dnsText))

// Requirements returns an error that lists what this machine lacks for a cluster with both families of addresses.
func (c *Cluster) Requirements(ctx context.Context) error {
	_, err := machine.Requirements(ctx, c.state, true)
	return err
}

// Up starts a cluster and returns when its nodes and its DNS are ready. It removes the remains of an earlier cluster,
// and returns an error if a cluster runs already, or if the machine lacks a requirement.
func (c *Cluster) Up(ctx context.Context, o Options, getter *binaries.Getter) error {
	families, err := o.families()
	if err != nil {
		return err
	}
	paths, err := machine.Requirements(ctx, c.state, o.IPFamily != IPv4)
	if err != nil {
		return fmt.Errorf("this machine cannot run a cluster:\n%w", err)
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := c.complete(); err == nil {
		if pids, err := c.marked(); err != nil || len(pids) > 0 {
			return errors.Join(err, fmt.Errorf("there is a cluster in %s: `%s` ends it", c.state, c.target("cluster-down")))
		}
	}
	if err := c.clean(ctx); err != nil {
		return err
	}
	programs, err := get(ctx, o, *getter)
	if err != nil {
		return err
	}
	gates, err := gatesOf(ctx, o, programs)
	if err != nil {
		return err
	}
	err = c.up(ctx, o, families, paths, programs, gates)
	if err != nil {
		return fmt.Errorf("%w\n(logs: %s; `%s` removes what was started)", err, c.path("logs"), c.target("cluster-down"))
	}
	return nil
}

// programs are the directories of a cluster's programs.
type programs struct {
	// control has all, in the control plane's version.
	control string
	// nodes have kubelet and kube-proxy, from the first node on.
	nodes []string
}

// get finds or builds the programs.
func get(ctx context.Context, o Options, getter binaries.Getter) (r programs, err error) {
	getter.Kubernetes = o.Kubernetes
	if r.control, err = getter.Get(ctx); err != nil {
		return r, err
	}
	for node := 1; node <= o.Nodes; node++ {
		getter.Kubernetes = o.version(node)
		directory, err := getter.Get(ctx, "kubelet", "kube-proxy")
		if err != nil {
			return r, err
		}
		r.nodes = append(r.nodes, directory)
	}
	return r, nil
}

func (c *Cluster) up(
	ctx context.Context, o Options, families []family, paths machine.Paths, r programs, g gates,
) error {
	d := description{Nodes: o.Nodes, IPFamily: o.IPFamily, Binaries: r.control}
	if err := c.prepare(ctx, d, families, paths); err != nil {
		return err
	}
	c.say("starting the control plane and %d nodes", o.Nodes)
	var group errgroup.Group
	group.Go(func() error { return c.startControlPlane(ctx, r.control, families, o.NodeMonitorGracePeriod, g) })
	group.Go(func() error { return c.startContainerds(ctx, d) })
	if err := group.Wait(); err != nil {
		return err
	}
	for node := 1; node <= o.Nodes; node++ {
		for _, p := range c.nodeProcesses(r.nodes[node-1], node, o.zone(node), families) {
			if _, err := c.start(g.on(p), r.control); err != nil {
				return err
			}
		}
	}
	if err := c.startDNS(ctx, families); err != nil {
		return err
	}
	d.Complete = true
	return c.describe(d)
}

// prepare writes files and makes networks and cgroups: all that is there before the first process.
func (c *Cluster) prepare(ctx context.Context, d description, families []family, paths machine.Paths) error {
	if err := os.MkdirAll(c.state, 0o755); err != nil {
		return err
	}
	if err := machine.SaveSysctls(c.path(sysctlFile)); err != nil {
		return fmt.Errorf("save the settings that the kubelet changes: %w", err)
	}
	if err := c.describe(d); err != nil {
		return err
	}
	if err := c.writeScripts(d); err != nil {
		return err
	}
	if err := c.makeNetworks(ctx, d.Nodes, families); err != nil {
		return err
	}
	if err := c.writePKI(d.Nodes, families); err != nil {
		return err
	}
	for _, name := range []string{"admin", "controller-manager", "scheduler", "proxy"} {
		if err := c.writeKubeconfig(name, families); err != nil {
			return err
		}
	}
	return eachNode(d.Nodes, func(node int) error {
		if err := c.writeNode(node, families, paths); err != nil {
			return err
		}
		if err := machine.NewNamespaces(ctx, c.namespaces(node), nodeName(node), c.nodeDirectories(node)); err != nil {
			return fmt.Errorf("make the namespaces of %s: %w", nodeName(node), err)
		}
		for _, directory := range []string{c.path(nodeName(node), "manifests"), c.run(nodeName(node), "s")} {
			if err := os.MkdirAll(directory, 0o700); err != nil {
				return err
			}
		}
		group, err := machine.NewCgroup(c.cgroup(node))
		if err != nil {
			return err
		}
		return group.Create()
	})
}

// eachNode calls do for each node at the same time.
func eachNode(nodes int, do func(node int) error) error {
	var group errgroup.Group
	for node := 1; node <= nodes; node++ {
		group.Go(func() error { return do(node) })
	}
	return group.Wait()
}

func (c *Cluster) startControlPlane(
	ctx context.Context, programs string, families []family, grace time.Duration, g gates,
) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for _, p := range c.controlPlane(programs, families, grace) {
		s, err := c.start(g.on(p), programs)
		if err != nil {
			return err
		}
		if p.program() != "kube-apiserver" {
			continue
		}
		if err := s.wait(ctx, c.apiReady); err != nil {
			return err
		}
	}
	return nil
}

// startContainerds starts the containerd of each node, and gives it the images of the cluster itself.
func (c *Cluster) startContainerds(ctx context.Context, d description) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	files, err := c.writeImages(d.Binaries)
	if err != nil {
		return err
	}
	return eachNode(d.Nodes, func(node int) error {
		s, err := c.start(c.containerdProcess(d.Binaries, node), d.Binaries)
		if err != nil {
			return err
		}
		if err := s.wait(ctx, func(ctx context.Context) error {
			return c.containerdReady(ctx, d.Binaries, node)
		}); err != nil {
			return err
		}
		for _, file := range files {
			if err := c.ctr(ctx, d.Binaries, node, "images", "import", file); err != nil {
				return err
			}
		}
		return nil
	})
}

// dnsManifests returns the manifests of CoreDNS.
func dnsManifests(families []family) ([]byte, error) {
	var text bytes.Buffer
	addresses := make([]netip.Addr, 0, len(families))
	for _, f := range families {
		addresses = append(addresses, f.dns)
	}
	err := dnsTemplate.Execute(&text, struct {
		Node, Image string
		Addresses   []netip.Addr
	}{nodeName(1), dnsImage, addresses})
	return text.Bytes(), err
}

// startDNS starts CoreDNS and waits until it and all nodes are ready.
func (c *Cluster) startDNS(ctx context.Context, families []family) error {
	manifests, err := dnsManifests(families)
	if err != nil {
		return err
	}
	if err := c.kubectl(ctx, string(manifests), "apply", "--filename=-"); err != nil {
		return fmt.Errorf("install CoreDNS: %w", err)
	}
	d, err := c.description()
	if err != nil {
		return err
	}
	timeout := "--timeout=" + startTimeout.String()
	for node := 1; node <= d.Nodes; node++ {
		for _, condition := range []string{"create", "condition=Ready"} {
			if err := c.kubectl(ctx, "", "wait", "--for="+condition, "node/"+nodeName(node), timeout); err != nil {
				return fmt.Errorf("wait for %s (log: %s): %w", nodeName(node),
					c.path("logs", "kubelet"+strconv.Itoa(node)+".log"), err)
			}
		}
	}
	if err := c.kubectl(ctx, "",
		"--namespace=kube-system", "rollout", "status", "deployment/coredns", timeout); err != nil {
		return fmt.Errorf("wait for CoreDNS: %w", err)
	}
	return nil
}

// Scripts in the state directory.
const (
	scriptKubectl = "kubectl"
	scriptNode    = "node"
)

// writeScripts writes the programs with which operators and tests reach the cluster.
func (c *Cluster) writeScripts(d description) error {
	kubectl := fmt.Sprintf("#!/bin/sh\n# kubectl as administrator, on the network of node 1.\nexec nsenter --net=%s %s --kubeconfig=%s \"$@\"\n",
		filepath.Join(machine.NetnsDir, c.namespace(1)), filepath.Join(d.Binaries, "kubectl"), c.kubeconfig("admin"))
	node := fmt.Sprintf("#!/bin/sh\n# node N COMMAND…: runs a command on the network of node N.\nn=$1; shift\nexec env KUBECONFIG=%s nsenter --net=%s$n \"$@\"\n",
		c.kubeconfig("admin"), filepath.Join(machine.NetnsDir, c.id+"-node"))
	return errors.Join(writeScript(c.path(scriptKubectl), kubectl), writeScript(c.path(scriptNode), node))
}

func writeScript(path, text string) error {
	return writeFile(path, []byte(text), 0o755)
}

// Kubectl is the path of a kubectl for this cluster. Node is the path of a program that, as `Node N COMMAND…`, runs
// COMMAND on the network of node N.
func (c *Cluster) Kubectl() string { return c.path(scriptKubectl) }

// Node is the path of a program: see Kubectl.
func (c *Cluster) Node() string { return c.path(scriptNode) }

// Check returns an error if the cluster is not up.
func (c *Cluster) Check() error {
	_, err := c.complete()
	return err
}

// CheckNode returns an error if the cluster is not up, or has no such node.
func (c *Cluster) CheckNode(node int) error {
	d, err := c.complete()
	if err != nil {
		return err
	}
	return d.checkNode(node)
}

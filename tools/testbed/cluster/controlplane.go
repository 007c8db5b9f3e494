package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"time"
)

// portAPI is the port of the API server.
const portAPI = 6443

// etcd listens on the loopback address of the first node's namespace.
const (
	etcdClient = "http://127.0.0.1:2379"
	etcdPeer   = "http://127.0.0.1:2380"
)

// controlPlane returns the processes of the control plane in start order.
func (c *Cluster) controlPlane(binaries string, families []family, grace time.Duration) []process {
	on1 := func(name, program string, args ...string) process {
		return process{Name: name, Node: 1, Command: append([]string{filepath.Join(binaries, program)}, args...)}
	}
	return []process{
		on1("etcd", "etcd", "--data-dir="+c.path("etcd"),
			"--listen-client-urls="+etcdClient, "--advertise-client-urls="+etcdClient,
			"--listen-peer-urls="+etcdPeer, "--initial-advertise-peer-urls="+etcdPeer, "--initial-cluster=default="+etcdPeer,
			"--unsafe-no-fsync"), // its data does not outlive the cluster
		on1("apiserver", "kube-apiserver", c.apiServerArguments(families)...),
		on1("controller-manager", "kube-controller-manager", "--kubeconfig="+c.kubeconfig("controller-manager"),
			"--service-account-private-key-file="+c.keyFile("service-accounts"), "--root-ca-file="+c.certificateFile("ca"),
			"--cluster-signing-cert-file="+c.certificateFile("ca"), "--cluster-signing-key-file="+c.keyFile("ca"),
			"--use-service-account-credentials", "--leader-elect=false", "--node-monitor-grace-period="+grace.String()),
		on1("scheduler", "kube-scheduler", "--kubeconfig="+c.kubeconfig("scheduler"), "--leader-elect=false"),
	}
}

func (c *Cluster) apiServerArguments(families []family) []string {
	return []string{
		"--etcd-servers=" + etcdClient,
		"--service-cluster-ip-range=" + joined(families, func(f family) fmt.Stringer { return f.services }),
		"--bind-address=" + families[len(families)-1].any.String(), // :: also listens on IPv4
		"--advertise-address=" + families[0].nodeAddress(1).String(),
		fmt.Sprintf("--secure-port=%d", portAPI),
		"--tls-cert-file=" + c.certificateFile("apiserver"), "--tls-private-key-file=" + c.keyFile("apiserver"),
		"--client-ca-file=" + c.certificateFile("ca"),
		"--service-account-key-file=" + c.accountsPublicKey(),
		"--service-account-signing-key-file=" + c.keyFile("service-accounts"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged",
		"--kubelet-preferred-address-types=InternalIP", // names of nodes do not resolve
		"--kubelet-certificate-authority=" + c.certificateFile("ca"),
		"--kubelet-client-certificate=" + c.certificateFile("kubelet-client"),
		"--kubelet-client-key=" + c.keyFile("kubelet-client"),
	}
}

// apiReady returns nil when the API server is ready.
func (c *Cluster) apiReady(ctx context.Context) error {
	return c.kubectl(ctx, "", "get", "--raw", "/readyz")
}

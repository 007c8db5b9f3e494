package cluster

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/tools/testbed/machine"
)

var paths = machine.Paths{Runc: "/usr/sbin/runc", Plugins: "/usr/lib/cni"}

func newCluster(t *testing.T) *Cluster {
	t.Helper()
	c, err := New(filepath.Join(t.TempDir(), "state"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// rendered returns all configuration with addresses of a cluster with two nodes as text.
func rendered(t *testing.T, c *Cluster, families []family) string {
	t.Helper()
	var text strings.Builder
	for _, p := range slices.Concat(c.controlPlane("/bin", families, time.Minute), c.nodeProcesses("/bin", 2, "", families)) {
		text.WriteString(strings.Join(p.Command, " ") + "\n")
	}
	for _, value := range []any{c.cniConfig(2, families), c.kubeletConfig(2, families), c.proxyConfig(2, families)} {
		raw, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(raw)
	}
	text.WriteString(strings.Join(addressCommands(2, 2, families), "\n"))
	manifests, err := dnsManifests(families)
	if err != nil {
		t.Fatal(err)
	}
	text.Write(manifests)
	return text.String()
}

// TestFamilies checks that the configuration has addresses of the cluster's families only.
func TestFamilies(t *testing.T) {
	traces := map[IPFamily][]string{
		IPv4: {"10.96.0.0/16", "10.88.2.0/24", "10.99.0.2", "10.96.0.10", "0.0.0.0/0", "10.88.0.0/16"},
		IPv6: {"fd96::/112", "fd88:2::/64", "fd99::2", "fd96::a", "::/0", "fd88::/16"},
	}
	tests := map[IPFamily]struct {
		has, hasNot []IPFamily
		policy      string
	}{
		Dual: {has: []IPFamily{IPv4, IPv6}, policy: "RequireDualStack"},
		IPv4: {has: []IPFamily{IPv4}, hasNot: []IPFamily{IPv6}, policy: "SingleStack"},
		IPv6: {has: []IPFamily{IPv6}, hasNot: []IPFamily{IPv4}, policy: "SingleStack"},
	}
	for mode, tc := range tests {
		t.Run(string(mode), func(t *testing.T) {
			families, err := mode.families()
			if err != nil {
				t.Fatal(err)
			}
			text := rendered(t, newCluster(t), families)
			for _, f := range tc.has {
				for _, trace := range traces[f] {
					if !strings.Contains(text, trace) {
						t.Errorf("no %s in the configuration", trace)
					}
				}
			}
			for _, f := range tc.hasNot {
				for _, trace := range traces[f] {
					if strings.Contains(text, trace) {
						t.Errorf("%s is in the configuration", trace)
					}
				}
			}
			if !strings.Contains(text, "ipFamilyPolicy: "+tc.policy) {
				t.Errorf("the DNS service is not %s", tc.policy)
			}
		})
	}
	if _, err := IPFamily("ipv5").families(); err == nil || !strings.Contains(err.Error(), `"ipv5"`) {
		t.Errorf("families() of ipv5: error = %v, want one that names it", err)
	}
}

// TestWriteNode checks that two nodes of two clusters share no path, and that no template value is missing.
func TestWriteNode(t *testing.T) {
	families, err := Dual.families()
	if err != nil {
		t.Fatal(err)
	}
	first, second := newCluster(t), newCluster(t)
	if first.id == second.id {
		t.Errorf("the clusters of two directories have one id, %s", first.id)
	}
	own := map[string]bool{}
	for _, c := range []*Cluster{first, second} {
		for node := 1; node <= 2; node++ {
			if err := c.writeNode(node, families, paths); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(c.path(nodeName(node), "containerd.toml"))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), `""`) || strings.Contains(string(text), "<no value>") {
				t.Errorf("a value is missing in:\n%s", text)
			}
			for _, name := range []string{c.socket(node), c.namespaces(node), c.cgroup(node), c.namespace(node), c.path(nodeName(node))} {
				if own[name] {
					t.Errorf("two nodes have %s", name)
				}
				own[name] = true
			}
		}
	}
}

func TestPKI(t *testing.T) {
	families, err := Dual.families()
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t)
	if err := c.writePKI(2, families); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(readCertificate(t, c.certificateFile("ca")))
	for name, tc := range map[string]struct{ file, user, group, host string }{
		"API server":    {file: "apiserver", user: "kube-apiserver", host: "fd96::1"},
		"administrator": {file: "admin", user: "admin", group: "system:masters"},
		"node":          {file: "node2", user: "system:node:node2", group: "system:nodes", host: "10.99.0.2"},
	} {
		t.Run(name, func(t *testing.T) {
			certificate := readCertificate(t, c.certificateFile(tc.file))
			if _, err := certificate.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
				t.Errorf("Verify(): %v", err)
			}
			if tc.host != "" {
				if err := certificate.VerifyHostname(tc.host); err != nil {
					t.Errorf("VerifyHostname(): %v", err)
				}
			}
			if got := strings.Join(certificate.Subject.Organization, ","); certificate.Subject.CommonName != tc.user || got != tc.group {
				t.Errorf("user %q of group %q, want %q of %q", certificate.Subject.CommonName, got, tc.user, tc.group)
			}
			if info, err := os.Stat(c.keyFile(tc.file)); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("Stat() of the key = %v, %v, want mode 0600", info, err)
			}
		})
	}
}

func readCertificate(t *testing.T, path string) *x509.Certificate {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

func TestNoCluster(t *testing.T) {
	c := newCluster(t)
	if err := c.Check(); err == nil || !strings.Contains(err.Error(), "there is no cluster in "+c.state) {
		t.Errorf("Check() without a cluster: error = %v", err)
	}
	if err := c.describe(description{Nodes: 2}); err != nil {
		t.Fatal(err)
	}
	if err := c.Check(); err == nil || !strings.Contains(err.Error(), "has not come up") || !strings.Contains(err.Error(), "STATE="+c.state) {
		t.Errorf("Check() of half a cluster: error = %v", err)
	}
	if err := c.describe(description{Nodes: 2, Complete: true}); err != nil {
		t.Fatal(err)
	}
	if err := c.CheckNode(3); err == nil || !strings.Contains(err.Error(), "nodes 1 to 2") {
		t.Errorf("CheckNode(3): error = %v", err)
	}
	if err := c.Stop(t.Context(), "kubelet7"); err == nil || !strings.Contains(err.Error(), `no process "kubelet7"`) {
		t.Errorf("Stop() of an unknown process: error = %v", err)
	}
}

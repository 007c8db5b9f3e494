package binaries

import (
	"crypto/sha256"
	_ "embed" // the source of pause
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// component is a Go module with programs to build.
type component struct {
	name   string
	module string
	// version names the component; moduleVersion is the module's, without the name of a patch.
	version, moduleVersion string
	// staging is the prefix of modules that this one replaces by directories of its own, and stagingVersion the version
	// under which they are published.
	staging, stagingVersion string
	// patch is nil for an unchanged module.
	patch *patch
	// source is the program itself, for a component without a module.
	source string
	// ldflags are additional flags of the linker.
	ldflags string
	// programs maps the name of each program to its package.
	programs map[string]string
	// tests are programs that test a cluster. They are only built when named. A name with the suffix testSuffix means the
	// test of its package.
	tests map[string]string
}

const testSuffix = ".test"

const kubernetesVersionPackage = "k8s.io/component-base/version"

//go:embed pause/main.go
var pauseSource string

// kubernetes returns the components of a Kubernetes version. A patch is a second component with only the kubelet.
func kubernetes(v Version) []component {
	all := ofKubernetes("v" + v.release())
	if v.patch() == nil {
		return []component{all}
	}
	patched := ofKubernetes("v" + v.String())
	patched.patch, patched.tests = v.patch(), nil
	patched.moduleVersion, patched.stagingVersion = all.moduleVersion, all.stagingVersion
	patched.programs = map[string]string{"kubelet": all.programs["kubelet"]}
	delete(all.programs, "kubelet")
	return []component{all, patched}
}

func ofKubernetes(version string) component {
	return component{
		name: "kubernetes", module: "k8s.io/kubernetes", version: version, moduleVersion: version,
		staging: "k8s.io/", stagingVersion: "v0." + strings.TrimPrefix(version, "v1."),
		ldflags: fmt.Sprintf("-X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=%[3]s -X %[1]s.gitMinor=%[4]s", kubernetesVersionPackage,
			version, part(version, 0), part(version, 1)),
		programs: map[string]string{
			"kube-apiserver":          "k8s.io/kubernetes/cmd/kube-apiserver",
			"kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
			"kube-scheduler":          "k8s.io/kubernetes/cmd/kube-scheduler",
			"kube-proxy":              "k8s.io/kubernetes/cmd/kube-proxy",
			"kubelet":                 "k8s.io/kubernetes/cmd/kubelet",
			"kubectl":                 "k8s.io/kubernetes/cmd/kubectl",
		},
		tests: map[string]string{
			"agnhost":                "k8s.io/kubernetes/test/images/agnhost",
			"e2e.test":               "k8s.io/kubernetes/test/e2e",
			"ginkgo":                 "github.com/onsi/ginkgo/v2/ginkgo",
			"regression-issue-74839": "k8s.io/kubernetes/test/images/regression-issue-74839",
		},
	}
}

// components returns all components of a cluster that Go can build.
func components(v Version) []component { return append(kubernetes(v), others...) }

// others are the components other than Kubernetes.
var others = []component{
	{
		name: "etcd", module: "go.etcd.io/etcd/server/v3", version: "v3.6.16", moduleVersion: "v3.6.16",
		programs: map[string]string{"etcd": "go.etcd.io/etcd/server/v3"},
	},
	{
		name: "containerd", module: "github.com/containerd/containerd/v2", version: "v2.4.2", moduleVersion: "v2.4.2",
		programs: map[string]string{
			"containerd":              "github.com/containerd/containerd/v2/cmd/containerd",
			"containerd-shim-runc-v2": "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
			"ctr":                     "github.com/containerd/containerd/v2/cmd/ctr",
		},
	},
	{
		name: "coredns", module: "github.com/coredns/coredns", version: "v1.15.0", moduleVersion: "v1.15.0",
		programs: map[string]string{"coredns": "github.com/coredns/coredns"},
	},
	{
		name: "pause", version: sum(pauseSource), source: pauseSource,
		programs: map[string]string{"pause": "."},
	},
}

// part returns one number of a version such as v1.36.3.
func part(version string, i int) string {
	return strings.Split(strings.TrimPrefix(version, "v"), ".")[i]
}

// sum returns a short hash.
func sum(text string) string {
	digest := sha256.Sum256([]byte(text))
	return hex.EncodeToString(digest[:6])
}

// directory is the component's directory in the cache.
func (c *component) directory() string { return c.name + "-" + c.version }

// set names all components with their versions.
func set(v Version) string {
	var all []string
	for _, c := range components(v) {
		all = append(all, c.directory())
	}
	return "all-" + sum(strings.Join(all, " "))
}

// Programs returns the sorted names of all programs of a cluster.
func Programs() []string {
	return names(func(c *component) map[string]string { return c.programs })
}

// Tests returns the sorted names of the programs that test a cluster.
func Tests() []string {
	return names(func(c *component) map[string]string { return c.tests })
}

func names(of func(*component) map[string]string) []string {
	var names []string
	for _, c := range components(DefaultVersion) {
		names = slices.AppendSeq(names, maps.Keys(of(&c)))
	}
	slices.Sort(names)
	return names
}

// packages maps the names of c's wanted programs to their packages.
func (c *component) packages(wanted []string) map[string]string {
	found := map[string]string{}
	for _, all := range []map[string]string{c.programs, c.tests} {
		for name, path := range all {
			if slices.Contains(wanted, name) {
				found[name] = path
			}
		}
	}
	return found
}

package binaries

import (
	"slices"
	"strings"
	"testing"
)

func TestParseVersion(t *testing.T) {
	for _, text := range []string{"1.37.2", "1.36.3", "1.37.2+probe-error-as-failure"} {
		if v, err := ParseVersion(text); err != nil || v.String() != text {
			t.Errorf("ParseVersion(%q) = %q, %v", text, v, err)
		}
	}
	for _, text := range []string{"", "1.37", "v1.37.2", "1.28.0", "1.37.2+", "1.37.2+other", "+probe-error-as-failure"} {
		want := `version "` + text + `" of Kubernetes: choose of 1.37.2, 1.36.3, with +probe-error-as-failure or without`
		if _, err := ParseVersion(text); err == nil || err.Error() != want {
			t.Errorf("ParseVersion(%q) error = %v, want %s", text, err, want)
		}
	}
	if v := Version("1.36.3+probe-error-as-failure"); v.Minor() != 36 || v.patch() == nil || Version("").Minor() != 37 || Version("").patch() != nil {
		t.Errorf("%s has minor version %d and the patch %v", v, v.Minor(), v.patch())
	}
}

// TestComponentsOfVersions checks that versions share equal components, and that a patch only changes the kubelet.
func TestComponentsOfVersions(t *testing.T) {
	programs := func(v Version) map[string]string {
		of := map[string]string{}
		for _, c := range components(v) {
			for name := range c.programs {
				of[name] = c.directory()
			}
		}
		return of
	}
	newest, older, patched := programs(""), programs("1.36.3"), programs("1.37.2+probe-error-as-failure")
	for name, directory := range newest {
		if directory != "kubernetes-v1.37.2" && (older[name] != directory || patched[name] != directory) {
			t.Errorf("%s is of %s, of %s with 1.36.3 and of %s with a patch", name, directory, older[name], patched[name])
		}
	}
	for got, want := range map[string]string{
		older["kubelet"]: "kubernetes-v1.36.3", older["kube-proxy"]: "kubernetes-v1.36.3",
		patched["kubelet"]: "kubernetes-v1.37.2+probe-error-as-failure", patched["kube-proxy"]: "kubernetes-v1.37.2",
	} {
		if got != want {
			t.Errorf("a program is of %s, want %s", got, want)
		}
	}
	if set("") == set("1.36.3") || set("") == set("1.37.2+probe-error-as-failure") || set("") != set("1.37.2") {
		t.Error("two versions have one set")
	}
	i := slices.IndexFunc(components("1.36.3"), func(c component) bool { return c.module == "k8s.io/kubernetes" })
	if got := components("1.36.3")[i]; got.stagingVersion != "v0.36.3" || !strings.HasSuffix(got.ldflags, ".gitMajor=1 -X k8s.io/component-base/version.gitMinor=36") {
		t.Errorf("the component of 1.36.3 is %+v", got)
	}
}

// TestModulesOfAPatchedKubelet checks that a patch changes no module versions, since only releases are published.
func TestModulesOfAPatchedKubelet(t *testing.T) {
	for _, c := range kubernetes("1.37.2+probe-error-as-failure") {
		if c.moduleVersion != "v1.37.2" || c.stagingVersion != "v0.37.2" {
			t.Errorf("%s takes modules of %s and %s, want v1.37.2 and v0.37.2", c.version, c.moduleVersion, c.stagingVersion)
		}
	}
}

func TestPatch(t *testing.T) {
	p := Version("1.37.2+probe-error-as-failure").patch()
	const before = "result, err := probe()\n\tif err != nil {\n\t\t// Prober error, throw away the result.\n\t\treturn true\n\t}\n"
	const after = "result, err := probe()\n\tif err != nil && result != results.Failure {\n\t\t// Prober error, throw away the result.\n\t\treturn true\n\t}\n"
	if got, err := p.apply(before); err != nil || got != after {
		t.Errorf("apply() = %q, %v, want %q", got, err, after)
	}
	for n, text := range []string{"something else", before, before + before} {
		if _, err := p.apply(text); (err == nil) != (n == 1) {
			t.Errorf("apply() where the text is %d times: error = %v", n, err)
		}
	}
}

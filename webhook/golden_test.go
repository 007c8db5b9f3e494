package webhook_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/internal/testing/golden"
	"github.com/sonde-mesh/sonde/webhook"
)

const testdata = "../testdata/inject"

// counted is a deterministic random source.
type counted byte

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(*c)
		*c++
	}
	return len(p), nil
}

func newRand() io.Reader { return new(counted) }

func forms() []webhook.Form { return []webhook.Form{webhook.Native, webhook.Container} }

// readPods returns the pods of all cases as JSON, by case.
func readPods(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(testdata, "*", "pod.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no case in %s: %v", testdata, err)
	}
	pods := map[string][]byte{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if pods[filepath.Base(filepath.Dir(file))], err = yaml.YAMLToJSONStrict(text); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	return pods
}

func TestGolden(t *testing.T) {
	files := map[string][]byte{}
	for name, pod := range readPods(t) {
		for file, got := range goldenFiles(t, pod) {
			files[filepath.Join(name, file)] = got
		}
	}
	golden.Files(t, testdata, files, "*/native.yaml", "*/container.yaml", "*/patch.json", "*/probes.json", "*/probes-container.json", "*/warnings.txt", "*/redirection.json")
}

// goldenFiles returns the pod in both sidecar forms, the patch of an admission in the native form, the probe table (of
// both forms if they differ), the warnings with their forms, and the redirection without kuma-init.
func goldenFiles(t *testing.T, pod []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	var order []string
	warned := map[string][]string{}
	for _, form := range forms() {
		injected, warnings, err := webhook.InjectJSON(pod, webhook.Options{Sidecar: form}.WithRandom(newRand()))
		if err != nil {
			t.Fatal(err)
		}
		if files[string(form)+".yaml"], err = yaml.JSONToYAML(injected); err != nil {
			t.Fatal(err)
		}
		table := "probes.json"
		if form == webhook.Container {
			table = "probes-container.json"
		}
		files[table] = indent(t, tableOf(t, decode(t, injected)))
		for _, warning := range warnings {
			if !slices.Contains(order, warning) {
				order = append(order, warning)
			}
			warned[warning] = append(warned[warning], string(form))
		}
	}
	if bytes.Equal(files["probes.json"], files["probes-container.json"]) {
		delete(files, "probes-container.json")
	}
	var text strings.Builder
	for _, warning := range order {
		fmt.Fprintf(&text, "%s: %s\n", strings.Join(warned[warning], ", "), warning)
	}
	files["warnings.txt"] = []byte(text.String())
	plugged, _, err := webhook.InjectJSON(pod, webhook.Options{CNI: webhook.CNIAll}.WithRandom(newRand()))
	if err != nil {
		t.Fatal(err)
	}
	redirection, _ := podspec.RedirectionText(&decode(t, plugged).Spec)
	files["redirection.json"] = indent(t, redirection)
	answer := review(t, newServer(t, enabled().options()), webhook.PathInject, podReview("shop", pod))
	files["patch.json"] = indent(t, string(answer.Patch))
	return files
}

func indent(t *testing.T, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := json.Indent(&out, []byte(text), "", "  "); err != nil {
		t.Fatal(err)
	}
	out.WriteByte('\n')
	return out.Bytes()
}

func decode(t testing.TB, document []byte) *corev1.Pod {
	t.Helper()
	pod, err := webhook.DecodePod(document)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// sidecarOf returns kuma-sidecar.
func sidecarOf(t testing.TB, pod *corev1.Pod) corev1.Container {
	t.Helper()
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name == mesh.ContainerSidecar {
			return c
		}
	}
	t.Fatal("the pod has no sidecar")
	return corev1.Container{}
}

// tableOf returns the text of the probe table.
func tableOf(t testing.TB, pod *corev1.Pod) string {
	t.Helper()
	for _, v := range sidecarOf(t, pod).Env {
		if v.Name == mesh.EnvProbeTable {
			return v.Value
		}
	}
	t.Fatal("the sidecar has no probe table")
	return ""
}

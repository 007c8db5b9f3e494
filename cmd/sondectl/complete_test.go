package main

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
)

// kubeconfigOf writes a kubeconfig of an API server.
func kubeconfigOf(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": "` + server + `"}}],
"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "shop"}}], "users": [{"name": "u", "user": {}}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// completions returns what sondectl completes, without the directive for the shell, and all that it says beside.
func completions(t *testing.T, args ...string) (names []string, stderr string) {
	t.Helper()
	var out, errors strings.Builder
	if code := run(t.Context(), append([]string{"__complete"}, args...), strings.NewReader(""), &out, &errors); code != exit.OK {
		t.Fatalf("exit code = %d: %s", code, errors.String())
	}
	for line := range strings.Lines(out.String()) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, ":") {
			names = append(names, line)
		}
	}
	return names, errors.String()
}

// listsOnly serves lists of nodes and pods, and has none of them when it is asked for one.
func listsOnly(t *testing.T) *httptest.Server {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		names, listed := map[string][]string{"/api/v1/nodes": {"worker-1", "worker-2", "main"}, "/api/v1/namespaces/shop/pods": {"web-0"}, "/api/v1/namespaces/edge/pods": {"gateway-0"}}[r.URL.Path]
		if !listed {
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Message: "it is not found", Code: http.StatusNotFound}) // as below
			return
		}
		list := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}}
		for _, name := range names {
			list.Items = append(list.Items, metav1.PartialObjectMetadata{
				TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, ObjectMeta: metav1.ObjectMeta{Name: name},
			})
		}
		_ = json.NewEncoder(w).Encode(list) // the test sees what is missing
	}))
	t.Cleanup(api.Close)
	return api
}

func TestDrainNamesWhatMayHaveBeenMeant(t *testing.T) {
	kubeconfig := kubeconfigOf(t, listsOnly(t).URL)
	for target, want := range map[string]string{
		"node/worker1": `sondectl: drain: read node "worker1": it is not found: did you mean "worker-1"?`,
		"pod/wbe-0":    `sondectl: drain: read pod "wbe-0": it is not found: did you mean "web-0"?`,
		"node/wbe-0":   `sondectl: drain: read node "wbe-0": it is not found`,
		"mian":         `sondectl: drain: "mian": there is no such node, and no such pod in namespace shop: did you mean "main"?`,
		"nothing":      `sondectl: drain: "nothing": there is no such node, and no such pod in namespace shop`,
	} {
		t.Run(target, func(t *testing.T) {
			var stdout, stderr strings.Builder
			code := run(t.Context(), []string{"drain", target, "--kubeconfig", kubeconfig}, strings.NewReader(""), &stdout, &stderr)
			if code != exit.Failed || stderr.String() != want+"\n" {
				t.Errorf("exit code %d: %q, want %q", code, stderr.String(), want)
			}
		})
	}
}

func TestCompleteNodesAndPods(t *testing.T) {
	kubeconfig := "--kubeconfig=" + kubeconfigOf(t, listsOnly(t).URL)
	tests := map[string]struct {
		args []string
		want []string
	}{
		"what there is":     {[]string{"drain", kubeconfig, ""}, []string{"node/", "pod/"}},
		"nodes":             {[]string{"drain", kubeconfig, "node/w"}, []string{"node/worker-1", "node/worker-2"}},
		"pods":              {[]string{"undrain", kubeconfig, "pod/"}, []string{"pod/web-0"}},
		"of a namespace":    {[]string{"drain", kubeconfig, "-n", "edge", "po/"}, []string{"po/gateway-0"}},
		"neither":           {[]string{"drain", kubeconfig, "service/"}, nil},
		"a second argument": {[]string{"drain", kubeconfig, "node/main", "node/"}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, _ := completions(t, tc.args...)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("completions (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCompletionIsBounded shows that a server that does not answer costs a moment, and that nothing is said of it.
func TestCompletionIsBounded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-ctx.Done() }))
	defer silent.Close()
	defer cancel()
	hung, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts, and nobody speaks
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close() //nolint:errcheck // nothing was sent
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("token"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string][]string{
		"no API server":          {"drain", "--kubeconfig=" + kubeconfigOf(t, "http://127.0.0.1:1"), "node/"},
		"a silent API server":    {"drain", "--kubeconfig=" + kubeconfigOf(t, silent.URL), "node/"},
		"no kubeconfig":          {"drain", "--kubeconfig=/nowhere", "node/"},
		"a silent control plane": {"get", "meshes", "--address=" + hung.Addr().String(), "--ca-cert-file=" + ca, "--token-file=" + token, ""},
		"no control plane":       {"get", "dataplanes", "--address=127.0.0.1:1", "--ca-cert-file=" + ca, "--token-file=" + token, ""},
		"three kinds of names":   {"why", "--address=" + hung.Addr().String(), "--ca-cert-file=" + ca, "--token-file=" + token, ""},
		"nothing is known":       {"get", "services", ""},
	}
	for name, args := range tests {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			names, stderr := completions(t, args...)
			if names != nil {
				t.Errorf("completions = %q, want none", names)
			}
			if strings.Contains(stderr, "sondectl:") {
				t.Errorf("it says %q", stderr)
			}
			if took := time.Since(began); took > 3*completionTimeout {
				t.Errorf("it took %s", took)
			}
		})
	}
}

package generator_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/internal/testing/golden"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/store"
)

const testdata = "../testdata"

func TestGolden(t *testing.T) {
	files := map[string][]byte{}
	for _, c := range readCases(t) {
		for _, id := range c.proxies {
			m, p := c.view.Proxy(id)
			if p == nil {
				t.Fatalf("case %s has no proxy %s", c.name, id)
			}
			for name, got := range goldenFiles(t, m, p) {
				files[filepath.Join(c.name, p.Dataplane.Name, name)] = got
			}
		}
	}
	golden.Files(t, testdata, files, "*/*/bootstrap.yaml", "*/*/clusters.yaml", "*/*/endpoints.yaml", "*/*/listeners.yaml", "*/*/routes.yaml", "*/*/static.yaml")
}

// goldenFiles returns all resources of p as YAML, as the control plane sends them.
func goldenFiles(t *testing.T, m *meshview.Mesh, p *meshview.Proxy) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for name, messages := range messagesOf(t, m, p) {
		switch name {
		case "bootstrap.yaml", "static.yaml":
			files[name] = toYAML(t, messages[0])
		default:
			files[name] = toYAMLList(t, messages)
		}
	}
	return files
}

// messagesOf returns the messages of p, by golden file.
func messagesOf(t *testing.T, m *meshview.Mesh, p *meshview.Proxy) map[string][]proto.Message {
	t.Helper()
	var clusters, endpoints, routes, listeners []proto.Message
	for _, c := range generator.InboundClusters(m, p) {
		clusters = append(clusters, c)
	}
	if c := generator.RecordsCluster(m, true); c != nil {
		clusters = append(clusters, c)
	}
	if c := generator.OutboundPassthrough(m, p); c != nil {
		clusters = append(clusters, c)
	}
	own := slices.Concat(generator.InboundListeners(m, p, mesh.DefaultTrustDomain, true), generator.OutboundListeners(m, p))
	for _, l := range slices.Concat(own, serviceListeners(m, p, own)) {
		listeners = append(listeners, l)
	}
	for _, name := range p.Scope.Services {
		s := m.Services.Get(name).For(p.Dataplane.Node())
		clusters = append(clusters, generator.OutboundCluster(m, s))
		endpoints = append(endpoints, generator.LoadAssignment(s))
		if r := generator.OutboundRoute(s); r != nil {
			routes = append(routes, r)
		}
	}
	return map[string][]proto.Message{
		"bootstrap.yaml": {bootstrap(t, p)},
		"clusters.yaml":  clusters,
		"endpoints.yaml": endpoints,
		"listeners.yaml": listeners,
		"routes.yaml":    routes,
		"static.yaml": {generator.Static(generator.StaticOptions{
			Mesh:        m,
			Proxy:       p,
			TrustDomain: mesh.DefaultTrustDomain,
			Certificate: pem(t, "certificate.pem"),
			Key:         pem(t, "key.pem"),
			CA:          pem(t, "ca.pem"),
		})},
	}
}

// pem reads a test certificate or key.
func pem(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func serviceListeners(m *meshview.Mesh, p *meshview.Proxy, own []*listenerv3.Listener) []*listenerv3.Listener {
	if p.Dataplane.Spec.Networking.TransparentProxying == nil {
		return nil
	}
	var listeners []*listenerv3.Listener
	for _, name := range p.Scope.Services {
		s := m.Services.Get(name).For(p.Dataplane.Node())
		for _, at := range s.Listeners() {
			l := generator.ServiceListener(s, at)
			if !slices.ContainsFunc(own, func(o *listenerv3.Listener) bool { return o.GetName() == l.GetName() }) {
				listeners = append(listeners, l)
			}
		}
	}
	return listeners
}

func bootstrap(t *testing.T, p *meshview.Proxy) proto.Message {
	t.Helper()
	b, err := generator.Bootstrap(generator.BootstrapOptions{
		Node:         p.ID(),
		Cluster:      mesh.WorkloadText(p.Dataplane.SPIFFEPath()),
		ControlPlane: "sonde-cp.example:5678",
		ServingName:  mesh.ServingName,
		DrainTime:    40 * time.Second,
		Records:      true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// toYAML validates m, as everything is validated before it is sent. It sorts the keys, since the output of protojson is
// not stable.
func toYAML(t *testing.T, m proto.Message) []byte {
	t.Helper()
	if err := m.(interface{ ValidateAll() error }).ValidateAll(); err != nil {
		t.Errorf("%s breaks its rules: %v", m.ProtoReflect().Descriptor().Name(), err)
	}
	body, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	out, err := yaml.JSONToYAML(body)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func toYAMLList(t *testing.T, list []proto.Message) []byte {
	t.Helper()
	if len(list) == 0 {
		return []byte("[]\n")
	}
	var out bytes.Buffer
	for _, m := range list {
		for i, line := range strings.SplitAfter(strings.TrimSuffix(string(toYAML(t, m)), "\n"), "\n") {
			if i == 0 {
				out.WriteString("- " + line)
			} else {
				out.WriteString("  " + line)
			}
		}
		out.WriteString("\n")
	}
	return out.Bytes()
}

// testCase is a directory of testdata with a mesh.yaml. Comments at the top of that file name the proxies to compare
// ("# proxies: a b") and the draining ones.
type testCase struct {
	name    string
	proxies []mesh.ID
	view    *meshview.View
}

func readCases(t *testing.T) []testCase {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(testdata, "*", "mesh.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no case in %s: %v", testdata, err)
	}
	cases := make([]testCase, 0, len(files))
	for _, file := range files {
		cases = append(cases, readCase(t, file))
	}
	return cases
}

func readCase(t *testing.T, file string) testCase {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c := testCase{name: filepath.Base(filepath.Dir(file)), proxies: idsIn(text, "# proxies:")}
	documents, problems, err := store.Read(file, strings.NewReader(""), "")
	problems = slices.DeleteFunc(problems, func(p store.Problem) bool { return p.Severity == store.Warning })
	if err != nil || len(problems) > 0 {
		t.Fatalf("%s: %v, %v", file, err, problems)
	}
	b := meshview.NewBuilder(meshview.Options{TrustDomain: mesh.DefaultTrustDomain, Sources: []string{"files"}})
	for _, d := range documents {
		b.Set("files", d.Object)
	}
	for _, id := range idsIn(text, "# draining:") {
		b.Observe(id, mesh.Observation{Draining: true})
	}
	b.Synced("files")
	change, ok := b.Build()
	if !ok {
		t.Fatalf("%s: no view", file)
	}
	c.view = change.After
	return c
}

func idsIn(text []byte, prefix string) []mesh.ID {
	var ids []mesh.ID
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			for name := range strings.FieldsSeq(rest) {
				ids = append(ids, mesh.MakeID(mesh.DefaultMesh, name))
			}
		}
	}
	return ids
}

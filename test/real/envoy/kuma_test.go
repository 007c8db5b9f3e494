package envoy

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/store"
)

// kumaDocument is a document in one of Kuma's forms.
type kumaDocument struct {
	name, text string
	// refused and warned are parts of the expected errors and warnings, one per problem. Any other problem
	// fails the test.
	refused, warned []string
}

// TestKumaDocuments checks each document: the store rejects it with the expected errors, or each Envoy accepts the
// resources of its proxies.
func TestKumaDocuments(t *testing.T) {
	documents := append(writtenDocuments(t), generatedDocuments()...)
	if len(documents) < 250 {
		t.Errorf("there are %d documents, want 250", len(documents))
	}
	all := &merged{}
	seen := map[string]string{}
	for i, d := range documents {
		if other, twice := seen[d.text]; twice {
			t.Errorf("%s is the same as %s", d.name, other)
		}
		seen[d.text] = d.name
		objects, problems := store.Decode(d.name, []byte(d.text))
		if missing := unexpected(d, problems); missing != "" {
			t.Errorf("%s:\n%s%s", d.name, d.text, missing)
		}
		switch {
		case len(d.refused) > 0 && len(objects) > 0:
			t.Errorf("%s is taken", d.name)
		case len(d.refused) == 0 && len(objects) != 1:
			t.Errorf("%s is not taken", d.name)
		case len(objects) == 1:
			all.add(t, d.name, objects[0].Object, i)
		}
	}
	all.validate(t)
}

// unexpected returns problems that the document does not expect, and expected problems that are
// missing.
func unexpected(d kumaDocument, problems []store.Problem) string {
	want := map[store.Severity][]string{store.Error: slices.Clone(d.refused), store.Warning: slices.Clone(d.warned)}
	var b strings.Builder
	for _, p := range problems {
		list := want[p.Severity]
		i := slices.IndexFunc(list, func(part string) bool { return strings.Contains(p.Err.Error(), part) })
		if i < 0 {
			fmt.Fprintf(&b, "unexpected %s: %v\n", p.Severity, p.Err)
			continue
		}
		want[p.Severity] = slices.Delete(list, i, i+1)
	}
	for severity, parts := range want {
		for _, part := range parts {
			fmt.Fprintf(&b, "missing %s: %s\n", severity, part)
		}
	}
	return b.String()
}

var note = regexp.MustCompile(`(?m)^# (name|refused|warned): (.*)$`)

// writtenDocuments reads the documents of testdata/kuma, whose comments list the expected messages.
func writtenDocuments(t *testing.T) []kumaDocument {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "kuma", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	var documents []kumaDocument
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range store.Split(data) {
			d := kumaDocument{text: string(part.Text)}
			for _, m := range note.FindAllStringSubmatch(d.text, -1) {
				switch m[1] {
				case "name":
					d.name = filepath.Base(file) + ": " + m[2]
				case "refused":
					d.refused = append(d.refused, m[2])
				case "warned":
					d.warned = append(d.warned, m[2])
				}
			}
			documents = append(documents, d)
		}
	}
	return documents
}

// surroundings has the other objects of a document's mesh: a Dataplane of each form that calls and is called. One of
// them is redirected.
const surroundings = `type: MeshService
name: redis
labels: {team: data}
spec: {selector: {dataplaneTags: {kuma.io/service: redis}}, ports: [{port: 6379, targetPort: 80, appProtocol: tcp}]}
---
{type: MeshService, name: web, spec: {selector: {dataplaneLabels: {matchLabels: {app: web}}}, ports: [{port: 80, targetPort: main, appProtocol: http}]}}
---
type: Dataplane
name: around-1
networking:
  address: 10.9.0.1
  inbound: [{port: 80, tags: {kuma.io/service: redis}}]
  outbound: [{port: 81, tags: {kuma.io/service: backend}}]
---
type: Dataplane
name: around-2
labels: {kuma.io/workload: web, app: web}
networking:
  address: 10.9.0.2
  inbound: [{port: 8080, name: main, protocol: http}]
  outbound: [{port: 81, backendRef: {kind: MeshService, name: web, port: 80}}]
  transparentProxying: {}
---
{type: Service, name: web_msvc_80, addresses: ["240.0.0.1:80"]}
`

// merged is one configuration with the resources of many proxies.
type merged struct {
	parts []mergedPart
}

type mergedPart struct {
	name   string
	config map[string]any
}

// add adds the resources of the proxies that a document affects: the Dataplane itself, or the surrounding Dataplanes
// of a Mesh or MeshService. The mode of the mesh varies by document.
func (m *merged) add(t *testing.T, name string, o mesh.Object, number int) {
	t.Helper()
	b := meshview.NewBuilder(meshview.Options{})
	objects, problems := store.Decode("surroundings", []byte(surroundings))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	for _, d := range objects {
		b.Set("files", d.Object)
	}
	proxies := []string{"around-1", "around-2"}
	if o.Key().Kind != mesh.KindMesh {
		b.Set("files", meshOf([]mesh.MTLSMode{"", mesh.ModeStrict, mesh.ModePermissive}[number%3]))
	}
	if o.Key().Kind == mesh.KindDataplane {
		proxies = []string{o.Key().Name}
	}
	b.Set("files", o)
	c, ok := b.Build()
	if !ok {
		t.Fatalf("%s: no view", name)
	}
	for _, proxy := range proxies {
		id := mesh.MakeID(mesh.DefaultMesh, proxy)
		inMesh, p := c.After.Proxy(id)
		if p == nil {
			t.Fatalf("%s: the view has no proxy %s", name, id)
		}
		bootstrap := generator.Static(generator.StaticOptions{
			Mesh: inMesh, Proxy: p, TrustDomain: mesh.DefaultTrustDomain,
			Certificate: golden(t, "certificate.pem"), Key: golden(t, "key.pem"), CA: golden(t, "ca.pem"),
		})
		if err := bootstrap.ValidateAll(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(bootstrap)
		if err != nil {
			t.Fatal(err)
		}
		var config map[string]any
		if err := json.Unmarshal(text, &config); err != nil {
			t.Fatal(err)
		}
		m.parts = append(m.parts, mergedPart{name + ", " + proxy, config})
	}
}

func meshOf(mode mesh.MTLSMode) *mesh.Mesh {
	o := &mesh.Mesh{Name: mesh.DefaultMesh}
	if mode != "" {
		o.Spec.MTLS = &mesh.MTLS{EnabledBackend: "ca", Backends: []mesh.Backend{{Name: "ca", Type: mesh.BackendBuiltin, Mode: mode}}}
	}
	return o
}

func golden(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "generator", "testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// validate has each Envoy validate all parts in one configuration, because starting Envoy takes longest. If Envoy
// rejects it, validate checks each part alone.
func (m *merged) validate(t *testing.T) {
	t.Helper()
	config := write(t, "all.json", m.asOne())
	for _, binary := range envoys(t) {
		out, err := run(t, workDirectory(t), binary, "--mode", "validate", "-c", config)
		if err == nil && warnings(out) == "" {
			continue
		}
		t.Errorf("%s: %v\n%s", binary, err, out)
		for _, p := range m.parts {
			alone := write(t, "one.json", p.config)
			if out, err := run(t, workDirectory(t), binary, "--mode", "validate", "-c", alone); err != nil || warnings(out) != "" {
				t.Errorf("%s: %v\n%s", p.name, err, out)
			}
		}
	}
}

// asOne gives each part its own names and ports.
func (m *merged) asOne() map[string]any {
	var clusters, listeners []any
	secrets := map[string]any{}
	port := 1024
	for i, p := range m.parts {
		static := p.config["static_resources"].(map[string]any)
		names := map[string]string{}
		for _, c := range list(static, "clusters") {
			name := c.(map[string]any)["name"].(string)
			names[name] = fmt.Sprintf("%d:%s", i, name)
		}
		for _, s := range list(static, "secrets") {
			secrets[s.(map[string]any)["name"].(string)] = s
		}
		clusters = append(clusters, renamed(list(static, "clusters"), names).([]any)...)
		for _, l := range renamed(list(static, "listeners"), names).([]any) {
			l := l.(map[string]any)
			l["name"] = fmt.Sprintf("%d:%s", i, l["name"])
			switch address := l["address"].(map[string]any); at := address["socket_address"].(type) {
			case map[string]any:
				port++
				at["port_value"] = port
			default: // the socket of the readiness listener
				address["pipe"] = map[string]any{"path": fmt.Sprintf("%d.sock", i)}
			}
			listeners = append(listeners, l)
		}
	}
	var kept []any
	for _, s := range secrets {
		kept = append(kept, s)
	}
	one := maps.Clone(m.parts[0].config)
	one["static_resources"] = map[string]any{"clusters": clusters, "listeners": listeners, "secrets": kept}
	return one
}

func list(in map[string]any, key string) []any {
	values, _ := in[key].([]any)
	return values
}

// renamed returns a copy of v in which texts that are keys of names are replaced.
func renamed(v any, names map[string]string) any {
	switch v := v.(type) {
	case string:
		if to, ok := names[v]; ok {
			return to
		}
		return v
	case []any:
		all := make([]any, len(v))
		for i := range v {
			all[i] = renamed(v[i], names)
		}
		return all
	case map[string]any:
		all := make(map[string]any, len(v))
		for key := range v {
			all[key] = renamed(v[key], names)
		}
		return all
	}
	return v
}

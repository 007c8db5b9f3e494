package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// dataplane is a valid Dataplane in the Universal form.
const dataplane = `type: Dataplane
mesh: default
name: web-1
networking:
  address: 10.0.0.1
  inbound:
    - port: 80
      tags:
        kuma.io/service: web
`

func TestDecodeForms(t *testing.T) {
	want := &mesh.Dataplane{
		Meta: mesh.Meta{Mesh: "prod", Name: "web-1", Labels: map[string]string{"kuma.io/workload": "web"}},
		Spec: mesh.DataplaneSpec{Networking: mesh.Networking{Address: "10.0.0.1"}},
	}
	const spec = "\nspec: {networking: {address: 10.0.0.1}}\n"
	tests := map[string]string{
		"Universal":        "type: Dataplane\nmesh: prod\nname: web-1\nlabels: {kuma.io/workload: web}\nnetworking: {address: 10.0.0.1}",
		"spec":             "type: Dataplane\nmesh: prod\nname: web-1\nlabels: {kuma.io/workload: web}" + spec,
		"metadata":         "type: Dataplane\nmetadata: {name: web-1, mesh: prod, labels: {kuma.io/workload: web}}" + spec,
		"both, the same":   "type: Dataplane\nname: web-1\nmesh: prod\nmetadata: {name: web-1, mesh: prod, labels: {kuma.io/workload: web}}" + spec,
		"any ObjectMeta":   "type: Dataplane\nmesh: prod\nmetadata: {name: web-1, creationTimestamp: null, namespace: x, annotations: {a: b}, uid: 7, labels: {kuma.io/workload: web}}" + spec,
		"JSON":             "{\n\t\"type\": \"Dataplane\", \"mesh\": \"prod\", \"name\": \"web-1\",\n\t\"labels\": {\"kuma.io/workload\": \"web\"},\n\t\"networking\": {\"address\": \"10.0.0.1\"}\n}",
		"CRLF":             "type: Dataplane\r\nmesh: prod\r\nname: web-1\r\nlabels: {kuma.io/workload: web}\r\nnetworking: {address: 10.0.0.1}\r\n",
		"byte order mark":  "\ufefftype: Dataplane\nmesh: prod\nname: web-1\nlabels: {kuma.io/workload: web}\nnetworking: {address: 10.0.0.1}\n",
		"mark, and marker": "\ufeff---\r\n\ufefftype: Dataplane\nmesh: prod\nname: web-1\nlabels: {kuma.io/workload: web}\nnetworking: {address: 10.0.0.1}\n",
		"behind the end":   "...\n\ufefftype: Dataplane\nmesh: prod\nname: web-1\nlabels: {kuma.io/workload: web}\nnetworking: {address: 10.0.0.1}\n",
		"directive":        "%YAML 1.2\n---\ntype: Dataplane\nmesh: prod\nname: web-1\nlabels: {kuma.io/workload: web}" + spec + "...\n",
		"on the marker":    "--- {type: Dataplane, mesh: prod, name: web-1, labels: {kuma.io/workload: web}, networking: {address: 10.0.0.1}}",
		"no Kuma protocol": "type: Dataplane\nmesh: prod\nname: web-1\nlabels: {kuma.io/workload: web}\nprobes:\nnetworking: {address: 10.0.0.1, outbound: [], inbound: null}",
	}
	for name, text := range tests {
		t.Run(name, func(t *testing.T) {
			documents, problems := Decode("f.yaml", []byte(text))
			if len(documents) != 1 || len(problems) != 0 {
				t.Fatalf("Decode() = %v, %v", documents, problems)
			}
			if diff := cmp.Diff(mesh.Object(want), documents[0].Object, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("Decode() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeMeshFromLabel(t *testing.T) {
	text := "type: Service\nmetadata: {name: a, labels: {kuma.io/mesh: prod}}\n"
	documents, problems := Decode("f.yaml", []byte(text))
	if len(documents) != 1 || len(problems) != 0 || documents[0].Object.Key().Mesh != "prod" {
		t.Errorf("Decode() = %v, %v", documents, problems)
	}
}

func TestDecodePlaces(t *testing.T) {
	text := "# comment\n\n---\n# a\ntype: Service\nname: a\n---\n---\n# empty\n---\n\ntype: Service\nname: b\n...\n# end\n---\ntype: Service\nname: '\n"
	documents, problems := Decode("f.yaml", []byte(text))
	var got []string
	for _, d := range documents {
		got = append(got, fmt.Sprintf("%s %s", d.Place, d.Object.Key().Name))
	}
	for _, p := range problems {
		got = append(got, p.Place.String())
	}
	want := []string{"f.yaml, document 1, line 5 a", "f.yaml, document 4, line 12 b", "f.yaml, document 5, line 18"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("places (-want +got):\n%s", diff)
	}
}

// violation has the fields of a Problem that tests compare.
type violation struct {
	Line                  int
	Severity              string
	Field, Value, Allowed string
}

func violations(problems []Problem) []violation {
	var list []violation
	for _, p := range problems {
		v := violation{Line: p.Line, Severity: p.Severity.String()}
		if f, ok := errors.AsType[*mesh.FieldError](p.Err); ok {
			v.Field, v.Value, v.Allowed = f.Field, f.Value, f.Allowed
		} else {
			v.Allowed = p.Err.Error()
		}
		list = append(list, v)
	}
	return list
}

// TestDecodeBadInput reads testdata/bad/<case>.yaml, each with one mistake. A problem must name the field, its value
// and what is allowed.
func TestDecodeBadInput(t *testing.T) {
	const (
		port    = "must be a port from 1 to 65535"
		segment = "must be 1 to 253 letters, digits, '.', '_' and '-', but not '.' or '..': it is part of a SPIFFE ID"
		at      = "must be an IP address that others can connect to: not unspecified, not multicast"
	)
	tests := map[string]violation{
		"broken-yaml":         {4, "error", "", "", "invalid YAML: did not find expected node content"},
		"unknown-field":       {7, "error", "networking.inbound[0].prot", "", "is an unknown field: did you mean port?"},
		"unknown-field-spec":  {5, "error", "spec.networks", "", "is an unknown field: known here are networking, probes, tcpProbes"},
		"unknown-field-top":   {4, "error", "networking", "", "is an unknown field: known here are type, name, mesh, labels, metadata, spec"},
		"unknown-metadata":    {4, "error", "metadata.nome", "", "is an unknown field: did you mean name?"},
		"port-0":              {6, "error", "networking.inbound[0].port", "0", port},
		"port-70000":          {6, "error", "networking.inbound[0].port", "70000", port},
		"port-negative":       {6, "error", "networking.inbound[0].port", "-1", port},
		"port-quoted":         {6, "error", "networking.inbound[0].port", "80", port + ": write 80 without quotes"},
		"port-octal":          {6, "error", "networking.inbound[0].port", "080", port},
		"port-missing":        {6, "error", "networking.inbound[0].port", "", "is missing: must be a port from 1 to 65535"},
		"service-port-0":      {7, "error", "networking.inbound[0].servicePort", "0", port},
		"two-inbounds":        {9, "error", "networking.inbound[1].port", "80", "must be free: networking.inbound[0] has it on the same address"},
		"inbound-outbound":    {10, "error", "networking.outbound[0].port", "80", "must be free: networking.inbound[0] has it on the same address"},
		"missing-tag":         {8, "warning", `networking.inbound[0].tags["kuma.io/service"]`, "", "is missing: others reach this inbound only by a MeshService that selects it"},
		"missing-tags":        {1, "warning", `labels["kuma.io/workload"]`, "", "is missing, and no tag kuma.io/service stands for it: the certificate only names this Dataplane, as /dataplane/web-1, so that clients need an update for each replica. Write the label with the same value for all replicas"},
		"empty-tag":           {8, "error", `networking.inbound[0].tags["kuma.io/service"]`, "", "is empty: " + segment},
		"null-tag":            {8, "error", `networking.inbound[0].tags["kuma.io/service"]`, "", "is empty: " + segment},
		"number-as-tag":       {10, "error", `networking.inbound[0].tags["version"]`, "1", "must be a text: put it in quotes"},
		"service-with-colon":  {8, "error", `networking.inbound[0].tags["kuma.io/service"]`, "web:80", segment},
		"unknown-protocol":    {10, "error", `networking.inbound[0].tags["kuma.io/protocol"]`, "htpp", "must be one of tcp, http, http2, grpc"},
		"no-address":          {5, "error", "networking.address", "example.com", at + ". A name is not resolved: write the address that it stands for"},
		"missing-address":     {4, "error", "networking.address", "", "is missing: " + at},
		"ready-yes":           {9, "error", "networking.inbound[0].health.ready", "yes", "must be true or false"},
		"list-as-mapping":     {6, "error", "networking.inbound", "{...}", "must be a list"},
		"mapping-as-list":     {5, "error", "networking", "[...]", "must be a mapping of fields"},
		"duplicate-key":       {4, "error", "name", "web-2", "must come once: it is on line 3 too"},
		"duplicate-key-below": {10, "error", `networking.inbound[0].tags["kuma.io/service"]`, "api", "must come once: it is on line 9 too"},
		"duplicate-object":    {5, "error", "name", "a", `must be unique: the Service of mesh "default" with this name is in duplicate-object.yaml, document 1, line 1 too`},
		"unknown-type":        {4, "error", "type", "Gateway", "must be one of Mesh, Dataplane, Service, MeshService"},
		"missing-type":        {1, "error", "type", "", "is missing: must be one of Mesh, Dataplane, Service, MeshService"},
		"name-twice":          {3, "error", "metadata.name", "b", `must be the same as name, "a"`},
		"mesh-twice":          {3, "error", "metadata.mesh", "two", `must be the same as mesh, "one"`},
		"mesh-label":          {4, "error", `labels["kuma.io/mesh"]`, "two", `must be the same as mesh, "one"`},
		"labels-twice":        {4, "error", "metadata.labels", "", "must be the same as labels at the top level"},
		"bad-name-metadata":   {3, "error", "metadata.name", "Web", "must be a DNS subdomain: at most 253 lower-case letters, digits, '-' and '.', with a letter or digit at both ends of each part"},
		"alias":               {3, "error", "name", "", "anchors and aliases are not read: write the value out"},
		"merge-key":           {4, "error", "", "<<", "must have plain names of fields"},
		"yaml-tag":            {2, "error", "name", "!secret", "tags of YAML are not read"},
		"list-at-top":         {1, "error", "", "", "a document must be a mapping with the fields type and name, and this is a list: write each as a document of its own, with --- on a line between them"},
		"duration":            {8, "error", "mtls.backends[0].dpCert.rotation.expiration", "1 day", mesh.AllowedDuration},
		"duration-zero":       {8, "error", "mtls.backends[0].dpCert.rotation.expiration", "0s", mesh.AllowedDuration},
		"unknown-backend":     {4, "error", "mtls.enabledBackend", "ca-2", "must be the name of one of mtls.backends: ca-1"},
		"tabs":                {3, "error", "", "", "invalid YAML: found a tab character that violates indentation: indent with spaces"},
		"second-document":     {1, "error", "", "", "invalid YAML: a second document must begin with --- on a line of its own"},
		"kuma-field":          {5, "warning", "networking.advertisedAddress", "", "is a field of Kuma's that Sonde does not have, and is ignored: other proxies connect to networking.address"},
		"kuma-field-spec":     {6, "warning", "spec.networking.advertised_address", "", "is a field of Kuma's that Sonde does not have, and is ignored: other proxies connect to networking.address"},
		"deprecated-probes":   {6, "warning", "spec.probes", "", "is deprecated and will be removed in Sonde 2.0: it only has an effect in the per-port mode (sonde.dev/virtual-probes-mode)"},
		"deprecated-tcp":      {6, "warning", "spec.tcpProbes", "", "is deprecated and will be removed in Sonde 2.0: it only has an effect in the per-port mode (sonde.dev/virtual-probes-mode)"},
		"outbound-tag":        {9, "warning", `networking.outbound[0].tags["version"]`, "v1", "has no effect: an outbound only uses kuma.io/service"},
	}
	files, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil || len(files) != len(tests) {
		t.Errorf("testdata/bad has %d files for %d cases, %v", len(files), len(tests), err)
	}
	for name, want := range tests {
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join("testdata/bad", name+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			documents, problems := Decode(name+".yaml", data)
			if diff := cmp.Diff([]violation{want}, violations(problems)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			first := name == "duplicate-object" || name == "unknown-type" // the first document is valid
			if kept := len(documents) > 0; kept != (want.Severity == "warning" || first) {
				t.Errorf("Decode() = %v", documents)
			}
		})
	}
}

func TestDecodeLimits(t *testing.T) {
	// much returns YAML of about that size.
	much := func(bytes int) string { return strings.Repeat("# "+strings.Repeat("x", 61)+"\n", bytes/64) }
	tests := map[string]struct {
		text string
		want []violation
	}{
		"document of 10 MB":            {"type: Mesh\n" + much(10_000_000), []violation{{0, "error", "", "", "a file may have at most 8 MiB"}}},
		"document over 1 MiB":          {"type: Mesh\n" + much(1<<20), []violation{{1, "error", "", "", "a document may have at most 1 MiB, this one has 1048587 bytes"}}},
		"second document over 1 MiB":   {service("a") + "---\n" + much(1<<20), []violation{{3, "error", "", "", "a document may have at most 1 MiB, this one has 1048580 bytes"}}},
		"many documents of some size":  {service("a") + much(900_000) + "---\n" + service("b") + much(900_000), nil},
		"many documents":               {strings.Repeat("---\n", 20_001), []violation{{0, "error", "", "", "a file may have at most 20000 documents, this one has 20001"}}},
		"no UTF-8":                     {"type: Mesh\nname: \xff\n", []violation{{0, "error", "", "", "the text must be UTF-8"}}},
		"deep":                         {strings.Repeat("[", 1<<19), []violation{{1, "error", "", "", "invalid YAML: exceeded max depth of 10000"}}},
		"lists in lists":               {"type: Mesh\nname: a\nx: " + strings.Repeat("[", 60) + strings.Repeat("]", 60) + "\n", []violation{{3, "error", "x" + strings.Repeat("[0]", 50), "", "is nested too deeply: at most 50 levels are read"}}},
		"deep, with long names":        {strings.Repeat("{"+strings.Repeat("k", 28)+": ", 9000) + "1" + strings.Repeat("}", 9000), []violation{{1, "error", strings.TrimPrefix(strings.Repeat("."+strings.Repeat("k", 28), 51), ".")[:500] + "...", "", "is nested too deeply: at most 50 levels are read"}}},
		"long name of a field":         {"type: Mesh\nname: a\n" + strings.Repeat("k", 501) + ": 1\n", []violation{{3, "error", "", strings.Repeat("k", 300) + "...", "must have names of fields of at most 500 bytes"}}},
		"more problems than are named": {"type: Service\nname: a\n" + manyFields(200), append(unknownFields(100), violation{0, "error", "", "", "too many problems, further ones are not listed"})},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, problems := Decode("f.yaml", []byte(tc.text))
			if diff := cmp.Diff(tc.want, violations(problems)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDecodeShortensLongTexts checks that neither the content of a document nor the names in it can fill a log.
func TestDecodeShortensLongTexts(t *testing.T) {
	long := strings.Repeat("ü", 100_000)
	for name, text := range map[string]string{
		"name":     "type: Service\nname: " + long + "\n",
		"field":    "type: Service\nname: a\n" + long[:1000] + ": 1\n",
		"tag":      "type: Dataplane\nname: a\nnetworking: {address: 10.0.0.1, gateway: {tags: {" + long[:1000] + ": a}}}\n",
		"duration": "type: Mesh\nname: a\nmtls: {backends: [{name: a, type: builtin, dpCert: {rotation: {expiration: " + strings.Repeat("0", 100_000) + "1s}}}]}\n",
		"backends": "type: Mesh\nname: a\nmtls: {enabledBackend: b, backends: [{name: " + long + ", type: builtin}]}\n",
	} {
		_, problems := Decode("f.yaml", []byte(text))
		if len(problems) != 1 || len(problems[0].Error()) > 2000 || !utf8.ValidString(problems[0].Error()) || !strings.Contains(problems[0].Error(), "...") {
			t.Errorf("%s: %d problems, %.3000v", name, len(problems), problems)
		}
	}
}

func manyFields(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "f%d: 1\n", i)
	}
	return b.String()
}

func unknownFields(n int) []violation {
	var list []violation
	for i := range n {
		list = append(list, violation{i + 3, "error", fmt.Sprintf("f%d", i), "", "is an unknown field: known here are type, name, mesh, labels, protocol, addresses, headless, sessionAffinity, internalTrafficPolicy, endpoints"})
	}
	return list
}

// An Error must be listed even if warnings fill the list: content with an Error is not used.
func TestDecodeErrorBehindManyWarnings(t *testing.T) {
	var text strings.Builder
	text.WriteString("type: Mesh\nname: a\nmtls:\n  backends:\n")
	for i := range 150 {
		fmt.Fprintf(&text, "  - {name: ca-%d, type: builtin, rootChain: {}}\n", i)
	}
	text.WriteString("colour: red\n")
	documents, problems := Decode("f.yaml", []byte(text.String()))
	if len(documents) != 0 || len(problems) != maxProblems+1 || problems[maxProblems].Severity != Error {
		t.Errorf("Decode() = %d documents, %d problems, the last %v", len(documents), len(problems), problems[len(problems)-1])
	}
}

func TestDecodeReportsAll(t *testing.T) {
	text := strings.NewReplacer("10.0.0.1", "nowhere", "port: 80", "port: none\n      colour: red").Replace(dataplane)
	_, problems := Decode("f.yaml", []byte(text))
	var fields []string
	for _, v := range violations(problems) {
		fields = append(fields, v.Field)
	}
	want := []string{"networking.inbound[0].port", "networking.inbound[0].colour", "networking.address"}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
}

func TestProblemNamesPlace(t *testing.T) {
	_, problems := Decode("f.yaml", []byte("type: Mesh\nname: default\n---\ntype: Gateway\n"))
	want := `f.yaml, document 2, line 4: type: "Gateway": must be one of Mesh, Dataplane, Service, MeshService`
	if len(problems) != 1 || problems[0].Error() != want || fmt.Sprint(problems[0]) != want {
		t.Errorf("problems = %v, want %s", problems, want)
	}
}

// TestDecodeArray shows that each item of a JSON array is a document, with its own line.
func TestDecodeArray(t *testing.T) {
	const mesh = `{"type": "Mesh", "name": "%s"}`
	item := func(name string) string { return fmt.Sprintf(mesh, name) }
	tests := map[string]struct {
		text string
		want []string // places of the objects
		err  string   // error of the only problem
	}{
		"one line":             {text: "[" + item("a") + "," + item("b") + "]", want: []string{"f.json, document 1, line 1", "f.json, document 2, line 1"}},
		"lines":                {text: "[\n  " + item("a") + ",\n\n  " + item("b") + "\n]\n", want: []string{"f.json, document 1, line 2", "f.json, document 2, line 4"}},
		"behind another":       {text: "type: Mesh\nname: a\n---\n[\n" + item("b") + "]\n---\n" + item("c"), want: []string{"f.json, document 1, line 1", "f.json, document 2, line 5", "f.json, document 3, line 7"}},
		"on the marker":        {text: "--- [" + item("a") + "]", want: []string{"f.json, document 1, line 1"}},
		"byte order mark":      {text: "\ufeff[" + item("a") + "]", want: []string{"f.json, document 1, line 1"}},
		"nothing":              {text: "[]"},
		"a text with brackets": {text: `[{"type": "Mesh", "name": "a", "labels": {"x": "],["}}]`, want: []string{"f.json, document 1, line 1"}},
		"a list in it":         {text: "[" + item("a") + ", [" + item("b") + "]]", want: []string{"f.json, document 1, line 1"}, err: "f.json, document 2, line 1: a document must be a mapping"},
		"cut":                  {text: "[" + item("a") + ",", err: "f.json, document 1, line 1: invalid YAML"},
		"a list of YAML":       {text: "- type: Mesh\n  name: a\n", err: "f.json, document 1, line 1: a document must be a mapping with the fields type and name, and this is a list"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			documents, problems := Decode("f.json", []byte(tc.text))
			var got []string
			for _, d := range documents {
				got = append(got, d.Place.String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("places (-want +got):\n%s", diff)
			}
			if (tc.err == "") != (len(problems) == 0) || len(problems) > 0 && !strings.HasPrefix(problems[0].Error(), tc.err) {
				t.Errorf("problems = %v, want %q", problems, tc.err)
			}
		})
	}
	if documents, problems := Decode("f.json", []byte("["+strings.Repeat(item("a")+",", maxDocuments)+item("a")+"]")); len(documents) > 0 || len(problems) != 1 {
		t.Errorf("Decode() of too many items = %v, %v", documents, problems)
	}
}

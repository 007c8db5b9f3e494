package store

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// TestSecretsAreNotShown checks that no problem contains the text sEcReT, which stands where users write secrets.
func TestSecretsAreNotShown(t *testing.T) {
	header := func(text string) string { return fmt.Sprintf(probedDataplane, "{httpGet: {httpHeaders: "+text+"}}") }
	const (
		headers = "networking.inbound[0].serviceProbe.httpGet.httpHeaders"
		backend = "type: Mesh\nname: default\nmtls:\n  backends:\n  - name: ca\n    type: provided\n    conf: "
		conf    = "mtls.backends[0].conf"
	)
	tests := map[string]struct{ text, want string }{
		"header that is a number":      {header("[{name: a, value: 0x5ec2e7}]"), headers + "[0].value: must be a text"},
		"header twice":                 {header("[{name: a, value: one, value: sEcReT}]"), headers + "[0].value: must come once"},
		"header that is a list":        {header("[{name: a, value: [sEcReT]}]"), headers + "[0].value: must be a text"},
		"header with a tag":            {header("[{name: a, value: !sEcReT x}]"), headers + "[0].value: tags of YAML are not read"},
		"header that begins with *":    {header("[{name: a, value: *sEcReT}]"), "invalid YAML: unknown anchor: put a value that begins with * in quotes"},
		"header with control letters":  {header(`[{name: a, value: "sEcReT\n"}]`), headers + "[0].value: must have no control characters"},
		"header as a text":             {header(`["Authorization: sEcReT"]`), headers + "[0]: must be a mapping"},
		"header in its name":           {header(`[{name: "Authorization: sEcReT"}]`), headers + `[0].name: "Authorization:": must be the name`},
		"headers as a text":            {header(`"Authorization: sEcReT"`), headers + ": must be a list"},
		"headers as a mapping, twice":  {header("{Authorization: one, Authorization: sEcReT}"), headers + ".Authorization: must come once"},
		"headers under another name":   {fmt.Sprintf(probedDataplane, "{httpGet: {headers: [{value: one, value: sEcReT}]}}"), "httpGet.headers[0].value: must come once"},
		"key of an authority":          {backend + "{key: {inlineString: one, inlineString: sEcReT}}\n", conf + ".key.inlineString: must come once"},
		"key of an authority, base64":  {backend + "{key: {inline: one, inline: sEcReT}}\n", conf + ".key.inline: must come once"},
		"key of an authority, alone":   {backend + "{key: one, key: sEcReT}\n", conf + ".key: must come once"},
		"key in a tag":                 {backend + "{key: !sEcReT x}\n", conf + ".key: tags of YAML"},
		"token of a vault":             {backend + "{fromCp: {auth: {token: {inline: one, inline: sEcReT}}}}\n", conf + ".fromCp.auth.token.inline: must come once"},
		"Secret":                       {"type: Secret\nname: a\ndata: one\ndata: sEcReT\n", "data: must come once"},
		"Secret of Kubernetes":         {"apiVersion: v1\nkind: Secret\nstringData: {password: one, password: sEcReT}\n", "stringData.password: must come once"},
		"unknown field with a secret":  {"type: Mesh\nname: a\npassword: ${sEcReT}\n", "password: is a template"},
		"field of a status":            {"type: Mesh\nname: a\nstatus: {token: one, token: sEcReT}\n", "status.token: must come once"},
		"a name of that field in tags": {"type: Dataplane\nname: a\nnetworking: {address: 10.0.0.1, gateway: {tags: {data: 1}}}\n", `networking.gateway.tags["data"]: 1: must be a text`},
		"field of a spec":              {"type: Mesh\nname: a\nspec: {mtls: {enabledBackend: 1}}\n", `spec.mtls.enabledBackend: 1: must be a text`},
		"label in metadata":            {"type: Mesh\nmetadata: {name: a, labels: {\"a\\\"b\": 1}}\n", `metadata.labels["a\"b"]: 1: must be a text`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, problems := Decode("f.yaml", []byte(tc.text))
			if len(problems) == 0 || !strings.Contains(problems[0].Error(), tc.want) {
				t.Errorf("problems %v, want %s", problems, tc.want)
			}
			for _, p := range problems {
				if strings.Contains(p.Error(), "sEcReT") || strings.Contains(p.Error(), "5ec2e7") {
					t.Errorf("%v has a secret", p)
				}
			}
		})
	}
}

// TestFreeKeys checks that the keys of all maps of the model are the same in the paths of problems and of the model.
func TestFreeKeys(t *testing.T) {
	var look func(name string, typ reflect.Type)
	look = func(name string, typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Map:
			if !slices.Contains(freeKeys, name) {
				t.Errorf("freeKeys lacks %s", name)
			}
		case reflect.Pointer, reflect.Slice:
			look(name, typ.Elem())
		case reflect.Struct:
			for f := range typ.Fields() {
				key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				look(key, f.Type)
			}
		}
	}
	for _, kind := range mesh.Kinds() {
		o, spec := newObject(kind, mesh.Meta{})
		look("spec", reflect.TypeOf(spec))
		look(string(kind), reflect.TypeOf(o))
	}
}

// TestHeadersAreNoTemplates checks that a password may contain any characters.
func TestHeadersAreNoTemplates(t *testing.T) {
	for _, value := range []string{"Bearer ${x", "a{{b", "{% c", "$(d)"} {
		documents, problems := Decode("web.yaml", fmt.Appendf(nil, probedDataplane, fmt.Sprintf("{httpGet: {httpHeaders: [{name: a, value: %q}]}}", value)))
		if len(documents) != 1 || len(problems) != 0 {
			t.Errorf("%s: %d documents, problems %v", value, len(documents), problems)
			continue
		}
		got := documents[0].Object.(*mesh.Dataplane).Spec.Networking.Inbound[0].ServiceProbe.HTTPGet.HTTPHeaders[0].Value //nolint:forcetypeassert // it is one
		if got != value {
			t.Errorf("value = %q, want %q", got, value)
		}
	}
}

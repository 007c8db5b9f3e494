package sonde_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/doctest"
	"github.com/sonde-mesh/sonde/store"
)

// model is the source of the types that people write.
type model map[string]*ast.TypeSpec

// readModel reads the package api/mesh.
func readModel(t *testing.T) model {
	t.Helper()
	files, err := filepath.Glob("api/mesh/*.go")
	if err != nil {
		t.Fatal(err)
	}
	types := model{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			general, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, s := range general.Specs {
				if spec, ok := s.(*ast.TypeSpec); ok {
					if spec.Doc == nil {
						spec.Doc = general.Doc
					}
					types[spec.Name.Name] = spec
				}
			}
		}
	}
	return types
}

// field is a row of the reference.
type field struct{ path, kind, meaning string }

// fields returns the fields of a struct and of its nested structs. path ends with a dot, or is empty.
func (m model) fields(t *testing.T, of, path string) []field {
	t.Helper()
	structure, ok := m[of].Type.(*ast.StructType)
	if !ok {
		t.Fatalf("%s is not a struct", of)
	}
	names := jsonNames(structure)
	var all []field
	for _, f := range structure.Fields.List {
		if len(f.Names) == 0 {
			all = append(all, m.fields(t, f.Type.(*ast.Ident).Name, path)...) //nolint:forcetypeassert // of this package
			continue
		}
		name := names[f.Names[0].Name]
		if name == "-" {
			continue
		}
		if name == "spec" {
			all = append(all, m.fields(t, f.Type.(*ast.Ident).Name, path)...) //nolint:forcetypeassert // of this package
			continue
		}
		meaning := sentence(f.Doc.Text(), names)
		kind, inner := m.kindOf(t, f.Type)
		if meaning == "" && inner != "" {
			meaning = sentence(m[inner].Doc.Text(), names)
		}
		if meaning == "" {
			t.Errorf("field %s%s has no comment in %s", path, name, of)
		}
		all = append(all, field{path + name, kind, meaning})
		if inner != "" {
			if strings.HasPrefix(kind, "list") {
				name += "[]"
			}
			all = append(all, m.fields(t, inner, path+name+".")...)
		}
	}
	return all
}

// kindOf describes the values of a field for readers, and returns its struct type, if it has one.
func (m model) kindOf(t *testing.T, e ast.Expr) (kind, inner string) {
	t.Helper()
	switch e := e.(type) {
	case *ast.StarExpr:
		return m.kindOf(t, e.X)
	case *ast.ArrayType:
		kind, inner = m.kindOf(t, e.Elt)
		return "list of " + strings.Replace(kind, "mapping", "mappings", 1), inner
	case *ast.MapType:
		return "mapping of text to text", ""
	case *ast.Ident:
		switch e.Name {
		case "string":
			return "text", ""
		case "bool":
			return "true or false", ""
		case "uint32":
			return "port", ""
		case "int32", "int64":
			return "number", ""
		case "Duration":
			return "duration", ""
		case "TargetPort":
			return "port or text", ""
		}
		if _, ok := m[e.Name].Type.(*ast.StructType); ok {
			return "mapping", e.Name
		}
		return m.kindOf(t, m[e.Name].Type)
	}
	t.Fatalf("a field has a type without a description: %s", reflect.TypeOf(e))
	return "", ""
}

// jsonNames maps the names of the fields in Go to those in files.
func jsonNames(s *ast.StructType) map[string]string {
	names := map[string]string{}
	for _, f := range s.Fields.List {
		if len(f.Names) > 0 {
			tag := reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json")
			names[f.Names[0].Name], _, _ = strings.Cut(tag, ",")
		}
	}
	return names
}

var (
	// marker is a line for the generator of CustomResourceDefinitions.
	marker    = regexp.MustCompile(`(?m)^\+.*$`)
	goName    = regexp.MustCompile(`\b[A-Z]\w+(\.[A-Z]\w+)*\b`)
	fieldPath = map[string]string{
		"Networking.Address": "networking.address", "TransparentProxying": "networking.transparentProxying", "ProbesPerPort": "mode `per-port`",
	}
)

// sentence returns a comment in one line, with the names of fields in files in place of their Go names.
func sentence(comment string, names map[string]string) string {
	text := strings.Join(strings.Fields(marker.ReplaceAllString(comment, "")), " ")
	text = goName.ReplaceAllStringFunc(text, func(name string) string {
		switch in, ok := names[name]; {
		case fieldPath[name] != "":
			return "`" + fieldPath[name] + "`"
		case ok && in != "-":
			return "`" + in + "`"
		}
		return name
	})
	return strings.ReplaceAll(text, "|", `\|`)
}

// TestReferenceGolden compares docs/reference with the types of api/mesh, and reads its examples.
func TestReferenceGolden(t *testing.T) {
	watchSource(t)
	types := readModel(t)
	for _, kind := range mesh.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			name := strings.ToLower(string(kind))
			example := filepath.Join("docs", "reference", "examples", name+".yaml")
			data, err := os.ReadFile(example)
			if err != nil {
				t.Fatal(err)
			}
			documents, problems := store.Decode(example, data)
			if len(problems) > 0 || len(documents) == 0 || !slices.ContainsFunc(documents, func(d store.Document) bool { return d.Object.Key().Kind == kind }) {
				t.Errorf("the example has %d documents and the problems %v", len(documents), problems)
			}
			doctest.Golden(t, *update, filepath.Join("docs", "reference", name+".md"), referencePage(kind, types[string(kind)].Doc.Text(), types.fields(t, string(kind), ""), string(data)))
		})
	}
}

func referencePage(kind mesh.Kind, about string, fields []field, example string) string {
	var page strings.Builder
	_, _ = fmt.Fprintf(&page, "# %s\n\n<!-- Written by make golden from api/mesh. -->\n\n%s\n\n", kind, sentence(about, nil)) // never fails
	page.WriteString("In a file, all fields stand at the top level, beside `type: " + string(kind) + "`; or only `name`, `mesh` and `labels` do, and the others stand under `spec`.\n\n" +
		"| field | type | meaning |\n|---|---|---|\n")
	for _, f := range fields {
		_, _ = fmt.Fprintf(&page, "| `%s` | %s | %s |\n", f.path, f.kind, f.meaning) // never fails
	}
	page.WriteString("\n## Example\n\n```yaml\n" + example + "```\n")
	return page.String()
}

// Package sonde_test guards the architecture: the directories are the stages of the data (docs/architecture.md), and
// each may import only what rules says.
package sonde_test

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/sonde-mesh/sonde"

// Libraries that some stages must not import, directly or indirectly.
var (
	kubernetes = []string{"k8s.io"}
	// kubernetesClients talk to an API server, unlike Kubernetes' types. controllerRuntime is only for directories
	// with reconciles, because of its cost (docs/decisions/079-controller-runtime.md).
	kubernetesClients = []string{"k8s.io/client-go"}
	controllerRuntime = []string{"sigs.k8s.io/controller-runtime"}
	envoyProtos       = []string{"github.com/envoyproxy", "github.com/cncf/xds"}
	grpc              = []string{"google.golang.org/grpc"}
	protobuf          = []string{"google.golang.org/protobuf"}
	// controlPlane has the directories of the mesh, which the watchdog must not depend on.
	controlPlane = []string{module + "/xds", module + "/generator", module + "/meshview", module + "/agents", module + "/pipeline", module + "/controlplane"}
	// effects must not be imported by a pure stage. Only its direct imports are checked, since its dependencies are not
	// pure.
	effects = []string{"os", "io/fs", "net", "net/http", "log", "log/slog", "crypto/rand", "math/rand", "math/rand/v2"}
)

// rule says what one directory may import.
type rule struct {
	// own lists our directories that it may import, besides itself and directories below it.
	own []string
	// any allows it to import all directories except programs.
	any bool
	// std restricts it to the standard library.
	std bool
	// forbidden libraries, directly or through others.
	forbidden [][]string
	// pure forbids effects.
	pure bool
	// reconciles allows controller-runtime.
	reconciles bool
}

// rules maps each directory, and all directories below it without a row of their own, to what it may import. Other
// libraries are allowed. docs/architecture.md gives the reasons, and a line on each directory.
var rules = map[string]rule{
	"api/mesh":         {std: true},
	"api/agent/v1":     {own: []string{"api/mesh"}, forbidden: [][]string{kubernetes, envoyProtos}},
	"api/admin/v1":     {forbidden: [][]string{kubernetes, envoyProtos}},
	"api/peer/v1":      {own: []string{"api/admin/v1", "api/agent/v1"}, forbidden: [][]string{kubernetes, envoyProtos}},
	"facts":            {own: []string{"api/mesh", "api/agent/v1", "api/peer/v1", "internal/cut"}, forbidden: [][]string{kubernetes, envoyProtos}},
	"replicas":         {own: []string{"api/mesh", "api/admin/v1", "api/peer/v1", "facts", "internal/connlimit", "internal/grpcconn", "internal/run"}, forbidden: [][]string{kubernetes, envoyProtos}},
	"meshview":         {own: []string{"api/mesh", "health/heartbeat", "internal/run"}, forbidden: [][]string{kubernetes, envoyProtos, grpc, protobuf}},
	"meshview/since":   {own: []string{"api/mesh", "meshview"}, forbidden: [][]string{kubernetes, envoyProtos, grpc, protobuf}},
	"meshview/explain": {own: []string{"api/mesh", "meshview"}, forbidden: [][]string{kubernetes, envoyProtos, grpc, protobuf}, pure: true},
	"store": {
		own:       []string{"api/mesh", "meshview", "meshview/explain", "internal/disk", "internal/filelock", "identity/secret", "health/heartbeat"},
		forbidden: [][]string{kubernetes, envoyProtos, grpc},
	},
	"generator": {
		own:       []string{"api/mesh", "meshview", "xds/resource"},
		forbidden: [][]string{kubernetes, grpc},
		pure:      true,
	},
	"xds":             {own: []string{"xds/resource"}, forbidden: [][]string{kubernetes}},
	"xds/resource":    {forbidden: [][]string{kubernetes, grpc}},
	"identity":        {own: []string{"api/mesh", "identity/secret", "health/heartbeat", "internal/run"}, forbidden: [][]string{kubernetes, envoyProtos}},
	"identity/secret": {std: true},
	"pipeline": {
		own: []string{
			"api/mesh", "api/admin/v1", "generator", "health/heartbeat", "identity", "identity/mtls", "meshview", "meshview/since", "meshview/explain", "recorded", "xds", "xds/resource",
		},
		forbidden: [][]string{kubernetes},
	},
	"internal/grpcconn": {own: []string{"internal/connlimit"}, forbidden: [][]string{kubernetes, envoyProtos}},
	"identity/mtls":     {own: []string{"api/mesh", "identity", "internal/connlimit"}, forbidden: [][]string{kubernetes, envoyProtos}},
	"agents": {
		own:       []string{"agents/join", "agents/session", "agents/rotation", "agents/observed", "api/mesh", "api/agent/v1", "api/admin/v1", "api/peer/v1", "facts", "identity", "meshview", "replicas", "health/heartbeat"},
		forbidden: [][]string{kubernetes, envoyProtos},
	},
	"agents/join": {
		own:       []string{"agents/call", "agents/observed", "api/mesh", "api/agent/v1", "identity", "identity/mtls", "meshview", "internal/connlimit", "internal/grpcconn", "internal/skew", "internal/sourcelimit"},
		forbidden: [][]string{kubernetes, envoyProtos},
	},
	"agents/session": {
		own:       []string{"agents/call", "agents/observed", "api/mesh", "api/agent/v1", "api/admin/v1", "api/peer/v1", "facts", "identity", "identity/mtls", "meshview", "replicas", "internal/cut", "internal/run", "internal/skew"},
		forbidden: [][]string{kubernetes, envoyProtos},
	},
	"agents/rotation": {own: []string{"admin/caller", "admin/lookup", "api/mesh", "api/admin/v1", "api/peer/v1", "identity", "meshview", "replicas"}, forbidden: [][]string{kubernetes, envoyProtos}},
	"agents/observed": {
		own:       []string{"agents/call", "api/mesh", "api/agent/v1", "api/peer/v1", "facts", "identity", "meshview", "replicas", "internal/cut"},
		forbidden: [][]string{kubernetes, envoyProtos},
	},
	"agents/call": {
		own:       []string{"api/mesh", "api/agent/v1", "identity", "meshview", "internal/cut"},
		forbidden: [][]string{kubernetes, envoyProtos},
	},
	"admin":        {own: []string{"admin/caller", "admin/lists", "admin/lookup", "admin/watch", "api/mesh", "api/admin/v1", "health", "identity", "meshview", "internal/connlimit", "internal/grpcconn"}, forbidden: [][]string{kubernetes, envoyProtos}},
	"admin/lists":  {own: []string{"admin/lookup", "api/mesh", "api/admin/v1", "api/agent/v1", "meshview", "meshview/explain"}, forbidden: [][]string{kubernetes, envoyProtos}},
	"admin/lookup": {own: []string{"api/mesh", "meshview", "internal/run"}, forbidden: [][]string{kubernetes, envoyProtos}},
	"admin/watch":  {own: []string{"api/mesh", "api/admin/v1", "internal/grpcconn", "internal/run"}, forbidden: [][]string{kubernetes, envoyProtos}},
	"admin/caller": {forbidden: [][]string{kubernetes, envoyProtos}},
	"recorded":     {own: []string{"api/mesh", "identity", "internal/run", "meshview"}, forbidden: [][]string{kubernetes, envoyProtos}},
	"strict":       {own: []string{"admin/lookup", "agents/observed", "api/mesh", "api/agent/v1", "api/admin/v1", "meshview"}, forbidden: [][]string{envoyProtos}},
	"dpagent": {
		own:       []string{"api/mesh", "api/agent/v1", "health", "health/heartbeat", "internal/connlimit", "internal/disk", "internal/filelock", "internal/shutdown", "internal/reach", "internal/buildinfo", "internal/cgroup", "internal/descriptors", "internal/localpeer", "internal/cut", "internal/execwire", "internal/replacefile", "internal/run"},
		forbidden: [][]string{kubernetes, envoyProtos},
	},
	"dpagent/redirect": {own: []string{"api/mesh"}, forbidden: [][]string{kubernetes, envoyProtos, grpc, protobuf}},
	"cni": {
		own: []string{
			"api/mesh", "cni/install", "cni/pods", "cni/wire", "controller/watch", "health", "internal/buildinfo", "internal/kubeconfig", "internal/localpeer", "internal/run",
		},
		forbidden: [][]string{envoyProtos, controlPlane},
	},
	"cni/wire":             {std: true},
	"cni/plugin":           {own: []string{"cni/wire"}, forbidden: [][]string{kubernetes, envoyProtos, grpc, protobuf}},
	"cni/conflist":         {forbidden: [][]string{kubernetes, envoyProtos, grpc}, pure: true},
	"cni/install":          {own: []string{"cni/conflist", "internal/replacefile"}, forbidden: [][]string{kubernetes, envoyProtos, grpc}},
	"cni/pods":             {own: []string{"api/mesh", "cni/wire", "dpagent/redirect", "internal/podspec"}, forbidden: [][]string{envoyProtos, kubernetesClients}},
	"internal/sourcelimit": {forbidden: [][]string{kubernetes, envoyProtos, grpc}},
	"controller":           {own: []string{"admin/caller", "controller/webhookconfig", "controller/leader", "controller/watch", "controller/events", "controller/upkeep", "controller/tokenreview", "api/mesh", "api/admin/v1", "api/agent/v1", "api/peer/v1", "api/v1alpha1", "identity/secret", "health/heartbeat", "internal/cut", "internal/execwire", "internal/podcause", "internal/podspec", "internal/run", "partition", "restartbudget"}, forbidden: [][]string{envoyProtos}},
	"controller/webhookconfig": {
		own:       []string{"controller/upkeep", "controller/watch", "health/heartbeat", "identity", "internal/run"},
		forbidden: [][]string{envoyProtos},
	},
	"controller/podevents": {
		own:       []string{"agents/join", "api/mesh", "api/agent/v1", "controller", "controller/events", "controller/watch", "identity", "internal/podcause"},
		forbidden: [][]string{envoyProtos},
	},
	"controller/definitions": {forbidden: [][]string{envoyProtos}},
	"controller/secrets":     {own: []string{"api/mesh", "identity", "identity/secret"}, forbidden: [][]string{envoyProtos}},
	"controller/tokenreview": {own: []string{"api/mesh", "identity", "internal/cut"}, forbidden: [][]string{envoyProtos}},
	"controller/access":      {own: []string{"api/mesh", "api/admin/v1", "controller/tokenreview", "identity", "internal/connlimit", "internal/cut", "internal/grpcconn", "internal/sourcelimit"}, forbidden: [][]string{envoyProtos}},
	"controller/leader":      {own: []string{"api/mesh", "internal/run"}, forbidden: [][]string{envoyProtos}},
	"controller/watch":       {own: []string{"internal/run"}, forbidden: [][]string{envoyProtos}},
	"controller/upkeep":      {own: []string{"health/heartbeat", "internal/run"}, forbidden: [][]string{kubernetes, envoyProtos}},
	"controller/events":      {own: []string{"api/mesh", "internal/cut"}, forbidden: [][]string{envoyProtos}},
	"api/v1alpha1":           {own: []string{"api/mesh"}, forbidden: [][]string{envoyProtos, kubernetesClients}},
	"api/crds":               {std: true},
	"restartbudget":          {std: true, pure: true},
	"partition":              {std: true, pure: true},
	"watchdog": {
		own: []string{
			"partition", "api/mesh", "api/v1alpha1", "controller/leader", "controller/watch", "controller/events", "controller/secrets", "health",
			"internal/buildinfo", "internal/descriptors", "internal/kubeconfig", "internal/localpeer", "internal/run",
		},
		forbidden:  [][]string{envoyProtos, controlPlane},
		reconciles: true,
	},
	"webhook":              {own: []string{"api/mesh", "internal/connlimit", "internal/cut", "internal/execwire", "internal/podspec"}, forbidden: [][]string{envoyProtos, kubernetesClients}},
	"health/heartbeat":     {std: true},
	"internal/localpeer":   {own: []string{"api/mesh"}, forbidden: [][]string{kubernetes, envoyProtos, grpc, protobuf}},
	"health":               {own: []string{"health/heartbeat", "internal/connlimit", "internal/cut"}, forbidden: [][]string{kubernetes, envoyProtos}},
	"internal/connlimit":   {std: true},
	"internal/cgroup":      {std: true},
	"internal/descriptors": {std: true},
	"internal/reach":       {own: []string{"api/mesh"}, forbidden: [][]string{kubernetes, envoyProtos}},
	"internal/logging":     {own: []string{"api/mesh", "internal/reach", "internal/connlimit", "internal/terminal"}, forbidden: [][]string{kubernetes, envoyProtos}},
	"internal/terminal":    {forbidden: [][]string{kubernetes, envoyProtos, grpc, protobuf}},
	"internal/settings":    {own: []string{"api/mesh"}, forbidden: [][]string{kubernetes, envoyProtos, grpc}},
	"internal/buildinfo":   {own: []string{"api/mesh"}, forbidden: [][]string{kubernetes, envoyProtos, grpc}},
	"internal/kubeconfig":  {own: []string{"api/mesh"}, forbidden: [][]string{envoyProtos}},
	"internal/podspec":     {own: []string{"api/mesh"}, forbidden: [][]string{envoyProtos, kubernetesClients}},
	"internal/podcause":    {own: []string{"api/mesh"}, forbidden: [][]string{kubernetes, envoyProtos, grpc, protobuf}, pure: true},
	"internal/cut":         {std: true},
	"internal/run":         {std: true},
	"internal/skew":        {forbidden: [][]string{kubernetes, envoyProtos, grpc, protobuf}},
	"internal/testing":     {any: true, forbidden: [][]string{kubernetes}},
	"internal/disk":        {std: true},
	"internal/execwire":    {std: true},
	"internal/filelock":    {std: true},
	"internal/replacefile": {std: true},
	"internal/shutdown":    {std: true},
	"controlplane":         {any: true},
	"cmd/sonde-cp":         {any: true},
	"cmd/sonde-dp":         {any: true, forbidden: [][]string{kubernetes, envoyProtos}},
	"cmd/sonde-watchdog":   {any: true, forbidden: [][]string{envoyProtos, controlPlane}, reconciles: true},
	"cmd/sonde-cni":        {any: true, forbidden: [][]string{envoyProtos, controlPlane}},
	"cmd/sonde-cni-plugin": {own: []string{"cni/plugin", "cni/wire"}, forbidden: [][]string{kubernetes, envoyProtos, grpc, protobuf}},
	"cmd/sonde-exec":       {own: []string{"internal/execwire"}, std: true},
	"cmd/sondectl":         {any: true},
}

// listed has the fields of go list that the test needs.
type listed struct {
	ImportPath   string
	Standard     bool
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// list returns all packages of this module and all their dependencies, by import path.
func list(t *testing.T) map[string]listed {
	t.Helper()
	watchSource(t)
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Standard,Imports,TestImports,XTestImports", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	packages := map[string]listed{}
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		switch err := decoder.Decode(&p); {
		case errors.Is(err, io.EOF):
			return packages
		case err != nil:
			t.Fatalf("decode the output of go list: %v", err)
		}
		packages[p.ImportPath] = p
	}
}

// watchSource reads all directories, so that `go test` runs this again instead of showing a cached result when a file
// in them has changed. It cannot see what go list reads.
func watchSource(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && slices.Contains([]string{".git", "bin", "deploy", "test", "tools"}, path) {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// directoryOf returns the directory of one of our packages; false for others.
func directoryOf(importPath string) (string, bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// ruleOf returns the nearest row of rules, or "".
func ruleOf(directory string) string {
	for ; directory != "."; directory = path.Dir(directory) {
		if _, ok := rules[directory]; ok {
			return directory
		}
	}
	return ""
}

func under(importPath string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool {
		return importPath == p || strings.HasPrefix(importPath, p+"/")
	})
}

// isProgram reports whether nothing may import a directory.
func isProgram(directory string) bool {
	return under(directory, []string{"cmd", "deploy", "test", "tools"})
}

// isForTests reports whether only tests may import a directory.
func isForTests(directory string) bool {
	return under(directory, []string{"internal/testing"})
}

func TestImports(t *testing.T) {
	packages := list(t)
	seen := map[string]bool{}
	for importPath, p := range packages {
		directory, own := directoryOf(importPath)
		if !own {
			continue
		}
		for _, i := range slices.Concat(p.TestImports, p.XTestImports) {
			if f, own := directoryOf(i); own && isProgram(f) && ruleOf(f) != ruleOf(directory) {
				t.Errorf("a test of %s imports %s: nothing imports cmd, test or tools", directory, f)
			}
		}
		if directory == "." {
			if len(p.Imports) > 0 {
				t.Error("the root directory contains code, but is only for tests of the whole tree")
			}
			continue
		}
		row := ruleOf(directory)
		if row == "" {
			t.Errorf("directory %s has no row: give it one in rules and in docs/architecture.md", directory)
			continue
		}
		seen[row] = true
		for _, complaint := range check(packages, p, row) {
			t.Errorf("%s %s (rules in imports_test.go)", directory, complaint)
		}
	}
	for row := range rules {
		if !seen[row] {
			t.Errorf("rules has a row for %s, but there is no such directory", row)
		}
	}
}

// check returns the imports of a package that the row of its directory forbids.
func check(packages map[string]listed, p listed, row string) (complaints []string) {
	for _, i := range p.Imports {
		if complaint := checkImport(i, packages[i].Standard, row); complaint != "" {
			complaints = append(complaints, "imports "+complaint)
		}
		if f, own := directoryOf(i); own && isForTests(f) && !isForTests(strings.TrimPrefix(p.ImportPath, module+"/")) {
			complaints = append(complaints, "imports "+f+", which is for tests")
		}
	}
	forbidden := rules[row].forbidden
	if !rules[row].reconciles {
		forbidden = append([][]string{controllerRuntime}, forbidden...)
	}
	for _, libraries := range forbidden {
		if chain := chainTo(packages, p.ImportPath, libraries, map[string]bool{}); chain != nil {
			complaints = append(complaints, "may not stand on "+libraries[0]+": "+strings.Join(chain, " -> "))
		}
	}
	return complaints
}

// checkImport returns why a package under that row must not import another one, "" if it may.
func checkImport(importPath string, standard bool, row string) string {
	r := rules[row]
	f, own := directoryOf(importPath)
	switch {
	case !own && r.std && !standard:
		return importPath + ", may import the standard library alone"
	case !own && r.pure && slices.Contains(effects, importPath):
		return importPath + ", but is pure: no clock, no log, no I/O"
	case !own || ruleOf(f) == row:
		return ""
	case isProgram(f):
		return f + ": nothing imports cmd, test or tools"
	case !r.any && !slices.Contains(r.own, ruleOf(f)):
		return f + ", may import of ours: " + strings.Join(r.own, ", ")
	}
	return ""
}

// chainTo returns the chain of imports from a package to one of libraries, or nil.
func chainTo(packages map[string]listed, from string, libraries []string, visited map[string]bool) []string {
	if visited[from] {
		return nil
	}
	visited[from] = true
	if under(from, libraries) {
		return []string{from}
	}
	for _, i := range packages[from].Imports {
		if chain := chainTo(packages, i, libraries, visited); chain != nil {
			return append([]string{from}, chain...)
		}
	}
	return nil
}

// TestCheck shows that the test above can fail, with a tree that breaks each rule once.
func TestCheck(t *testing.T) {
	tests := map[string]struct {
		directory string
		imports   []string
		want      string // "" for none
	}{
		"allowed":                {"meshview", []string{module + "/api/mesh", "sync"}, ""},
		"itself, below":          {"dpagent/probe", []string{module + "/dpagent/table"}, ""},
		"another stage":          {"meshview", []string{module + "/xds"}, "imports xds, may import of ours: api/mesh"},
		"row below a row":        {"meshview", []string{module + "/xds/resource"}, "imports xds/resource"},
		"parent of its own row":  {"xds/resource", []string{module + "/xds"}, "imports xds"},
		"a program":              {"store", []string{module + "/cmd/sonde-cp"}, "nothing imports cmd"},
		"a program by a program": {"cmd/sondectl", []string{module + "/cmd/sonde-cp"}, "nothing imports cmd"},
		"tools by a program":     {"cmd/sondectl", []string{module + "/tools/envoy"}, "nothing imports cmd"},
		"what is for tests":      {"cmd/sondectl", []string{module + "/internal/testing/doctest"}, "imports internal/testing/doctest, which is for tests"},
		"library in the model":   {"api/mesh", []string{"example.com/library"}, "standard library alone"},
		"forbidden library":      {"dpagent", []string{"k8s.io/api/core/v1"}, "may not stand on k8s.io"},
		"forbidden by another":   {"cmd/sonde-dp", []string{"example.com/library"}, "example.com/library -> github.com/envoyproxy/x"},
		"controller-runtime":     {"cmd/sondectl", []string{"sigs.k8s.io/controller-runtime/pkg/client"}, "may not stand on sigs.k8s.io/controller-runtime"},
		"where it may be":        {"watchdog", []string{"sigs.k8s.io/controller-runtime/pkg/controller"}, ""},
		"effect of a pure stage": {"generator", []string{"log/slog"}, "is pure"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := listed{ImportPath: module + "/" + tc.directory, Imports: tc.imports}
			packages := map[string]listed{
				p.ImportPath:          p,
				"sync":                {Standard: true},
				"log/slog":            {Standard: true},
				"example.com/library": {ImportPath: "example.com/library", Imports: []string{"github.com/envoyproxy/x"}},
			}
			got := check(packages, p, ruleOf(tc.directory))
			if tc.want == "" && len(got) > 0 {
				t.Errorf("check() = %q, want none", got)
			}
			if tc.want != "" && (len(got) != 1 || !strings.Contains(got[0], tc.want)) {
				t.Errorf("check() = %q, want an error with %q", got, tc.want)
			}
		})
	}
}

// TestRoomsInDocs checks that the docs have a line for each directory with a rule.
func TestRoomsInDocs(t *testing.T) {
	text, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range slices.Sorted(maps.Keys(rules)) {
		if !strings.Contains(string(text), "\n| `"+row+"` |") {
			t.Errorf("docs/architecture.md has no row for `%s`", row)
		}
	}
}

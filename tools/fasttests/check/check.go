// Package check finds tests that need a socket, a process or a real clock, although they are in a fast package.
//
// It reports every socket and process in a test file, unless only benchmarks reach it. It reports a wait if a test
// reaches it outside of a bubble of testing/synctest: by calls and by function values, followed through variables,
// parameters, fields and results. Code that cannot be followed counts as called in a bubble if one exists: a method
// that is only called through interfaces, if a bubble creates a value of its type, and a function passed to product
// code, if its test creates a bubble.
package check

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// Analyzer reports code that fast tests must not use.
var Analyzer = &analysis.Analyzer{
	Name:      "fasttests",
	Doc:       "report sockets, processes and real clocks in fast tests",
	Run:       run,
	FactTypes: []analysis.Fact{(*makesBubble)(nil), (*usesClock)(nil)},
}

// makesBubble is the fact that a function creates a bubble and runs these parameters in it.
type makesBubble struct{ Params []int }

func (*makesBubble) AFact() {}

func (f *makesBubble) String() string { return fmt.Sprint("makes a bubble for ", f.Params) }

// usesClock is the fact that a function of a test file waits if it is called outside of a bubble.
type usesClock struct{ Call string }

func (*usesClock) AFact() {}

func (f *usesClock) String() string { return "calls " + f.Call }

func run(pass *analysis.Pass) (any, error) {
	w := &walker{graph: newGraph(), pass: pass, own: map[*types.Func]bool{}, files: map[*token.File]bool{}}
	files := relevant(pass)
	for _, f := range files {
		w.files[pass.Fset.File(f.Pos())] = true
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil {
				if fn, ok := pass.TypesInfo.Defs[d.Name].(*types.Func); ok {
					w.own[fn] = true
				}
			}
		}
	}
	for _, f := range files {
		w.file(f)
	}
	w.settle()
	w.report()
	w.export()
	return nil, nil
}

// relevant returns the test files, and all files of a package that creates bubbles.
func relevant(pass *analysis.Pass) []*ast.File {
	var files []*ast.File
	for _, f := range pass.Files {
		makes := slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool {
			path := strings.Trim(i.Path.Value, `"`)
			return path == "testing/synctest" || path+".Run" == virtualRun
		})
		if makes || isTest(pass, f.Pos()) {
			files = append(files, f)
		}
	}
	return files
}

// roots returns the functions that go test calls, and the benchmarks.
func (w *walker) roots() (tests, benchmarks []node) {
	tests = []node{initialisers}
	byPosition := func(a, b *types.Func) int { return int(a.Pos() - b.Pos()) }
	for _, fn := range slices.SortedFunc(maps.Keys(w.own), byPosition) {
		if !isTest(w.pass, fn.Pos()) || fn.Signature().Recv() != nil {
			continue
		}
		switch {
		case strings.HasPrefix(fn.Name(), "Benchmark"):
			benchmarks = append(benchmarks, fn)
		case entry(fn.Name()):
			tests = append(tests, fn)
		}
	}
	return tests, benchmarks
}

// entry reports whether go test calls functions with this name.
func entry(name string) bool {
	prefixes := []string{"Test", "Fuzz", "Example", "Benchmark"}
	return name == "init" || slices.ContainsFunc(prefixes, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}

func (w *walker) report() {
	tests, benchmarks := w.roots()
	outside, run, measured := reach(w.outside, tests...), reach(w.any, tests...), reach(w.any, benchmarks...)
	for _, n := range w.order {
		for _, u := range w.uses[n] {
			switch root := outside[n]; {
			case !isTest(w.pass, u.pos):
			case u.rule == kernel && (measured[n] == nil || run[n] != nil):
				w.pass.Reportf(u.pos, "%s uses %s: %s", w.nameOf(n), u.name, advice[kernel])
			case u.rule == clock && root != nil && w.nameOf(root) == w.nameOf(n):
				w.pass.Reportf(u.pos, "%s calls %s outside a bubble: %s", w.nameOf(n), u.name, advice[clock])
			case u.rule == clock && root != nil:
				w.pass.Reportf(u.pos, "%s calls %s, and %s reaches it outside a bubble: %s", w.nameOf(n), u.name, w.nameOf(root), advice[clock])
			}
		}
	}
}

// export exports facts about functions for packages that call them.
func (w *walker) export() {
	for fn := range w.own {
		if !fn.Exported() || entry(fn.Name()) {
			continue
		}
		outside := reach(w.outside, fn)
		if call := w.firstWait(outside); call != "" && isTest(w.pass, fn.Pos()) {
			w.pass.ExportObjectFact(fn, &usesClock{call})
		}
		if !w.makers[fn] {
			continue
		}
		fact := &makesBubble{}
		anywhere := reach(w.any, fn)
		for i := range fn.Signature().Params().Len() {
			p := fn.Signature().Params().At(i)
			if _, ok := p.Type().Underlying().(*types.Signature); ok && anywhere[p] != nil && outside[p] == nil {
				fact.Params = append(fact.Params, i)
			}
		}
		w.pass.ExportObjectFact(fn, fact)
	}
}

package main

import (
	"errors"
	"fmt"
	"go/types"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/packages"

	"github.com/sonde-mesh/sonde/tools/fasttests/check"
)

// analyzer checks the packages of several modules.
type analyzer struct {
	root string
	// isReal reports whether a package is exempt.
	isReal func(directory string) bool
	// packages are the directories that were loaded.
	packages map[string]bool
	// found are the messages by package, each with its position.
	found map[string][]string
	// facts about functions, by full name, since a compiled package has other objects than its source.
	facts map[string]analysis.Fact
	done  map[*packages.Package]bool
	// named are the packages that the patterns name. Other packages, which are compiled again for tests of their imports,
	// have no types in function bodies.
	named map[*packages.Package]bool
}

// module checks all packages of a module.
func (a *analyzer) module(directory string) error {
	config := &packages.Config{Mode: packages.LoadSyntax, Dir: filepath.Join(a.root, directory), Tests: true}
	all, err := packages.Load(config, "./...")
	if err != nil {
		return fmt.Errorf("load module %s: %w", directory, err)
	}
	for _, p := range all {
		a.named[p] = true
	}
	for _, p := range all {
		if err := a.check(p); err != nil {
			return err
		}
	}
	return nil
}

// check checks a package after its imports, whose facts it needs.
func (a *analyzer) check(p *packages.Package) error {
	if !a.named[p] || a.done[p] || len(p.Syntax) == 0 || strings.HasSuffix(p.ID, ".test") {
		return nil
	}
	a.done[p] = true
	for _, path := range slices.Sorted(maps.Keys(p.Imports)) {
		if err := a.check(p.Imports[path]); err != nil {
			return err
		}
	}
	if len(p.Errors) > 0 {
		var errs []error
		for _, err := range p.Errors {
			errs = append(errs, err)
		}
		return fmt.Errorf("load %s: %w", p.ID, errors.Join(errs...))
	}
	directory, err := filepath.Rel(a.root, filepath.Dir(p.Fset.File(p.Syntax[0].Pos()).Name()))
	if err != nil {
		return err
	}
	directory = filepath.ToSlash(directory)
	a.packages[directory] = true
	_, err = check.Analyzer.Run(a.pass(p, directory))
	return err
}

// pass returns the analyzer's input for a package.
func (a *analyzer) pass(p *packages.Package, directory string) *analysis.Pass {
	return &analysis.Pass{
		Analyzer: check.Analyzer, Fset: p.Fset, Files: p.Syntax, Pkg: p.Types, TypesInfo: p.TypesInfo,
		TypesSizes: p.TypesSizes,
		Report: func(d analysis.Diagnostic) {
			if a.isReal(directory) {
				return
			}
			at := p.Fset.Position(d.Pos)
			message := fmt.Sprintf("%s/%s:%d:%d: %s", directory, filepath.Base(at.Filename), at.Line, at.Column, d.Message)
			if !slices.Contains(a.found[directory], message) {
				a.found[directory] = append(a.found[directory], message)
			}
		},
		ExportObjectFact: func(obj types.Object, fact analysis.Fact) { a.facts[factKey(obj, fact)] = fact },
		ImportObjectFact: func(obj types.Object, into analysis.Fact) bool {
			fact, ok := a.facts[factKey(obj, into)]
			if ok {
				reflect.ValueOf(into).Elem().Set(reflect.ValueOf(fact).Elem())
			}
			return ok
		},
	}
}

func factKey(obj types.Object, fact analysis.Fact) string {
	return fmt.Sprintf("%T %s", fact, obj.(*types.Func).FullName())
}

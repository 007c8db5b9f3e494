package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// pkg is a package of a module.
type pkg struct {
	// directory from the top of the repository, with slashes.
	directory string
	path      string
	module    string // its directory
	tests     bool
	imports   []string
	// testImports are the imports of only its tests.
	testImports []string
}

// packages returns the packages of all modules.
func (r *repository) packages(ctx context.Context, modules []string) ([]*pkg, error) {
	var all []*pkg
	for _, module := range modules {
		out, err := r.run(ctx, filepath.Join(r.root, module), "go", "list", "-json=Dir,ImportPath,Imports,TestGoFiles,XTestGoFiles,TestImports,XTestImports", "./...")
		if err != nil {
			return nil, err
		}
		for d := json.NewDecoder(strings.NewReader(out)); ; {
			var p struct {
				Dir, ImportPath                                               string
				Imports, TestGoFiles, XTestGoFiles, TestImports, XTestImports []string
			}
			if err := d.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("decode packages of %s: %w", module, err)
			}
			directory, err := filepath.Rel(r.root, p.Dir)
			if err != nil {
				return nil, err
			}
			all = append(all, &pkg{
				directory: filepath.ToSlash(directory), path: p.ImportPath, module: module,
				tests: len(p.TestGoFiles)+len(p.XTestGoFiles) > 0, imports: p.Imports,
				testImports: slices.Concat(p.TestImports, p.XTestImports),
			})
		}
	}
	return all, nil
}

// owners returns the packages of files. Files such as test data belong to the nearest directory above with a package.
func owners(all []*pkg, files []string) []*pkg {
	byDirectory := map[string]*pkg{}
	for _, p := range all {
		byDirectory[p.directory] = p
	}
	found := map[*pkg]bool{}
	for _, file := range files {
		for directory := path.Dir(file); ; directory = path.Dir(directory) {
			if p := byDirectory[directory]; p != nil {
				found[p] = true
				break
			}
			if directory == "." {
				break
			}
		}
	}
	var list []*pkg
	for _, p := range all {
		if found[p] {
			list = append(list, p)
		}
	}
	return list
}

// affected returns the packages whose tests depend on changed packages: changed packages first, then by distance. An
// import in tests only affects the importing package itself.
func affected(all, changed []*pkg) []*pkg {
	importers, testers := map[string][]*pkg{}, map[string][]*pkg{}
	for _, p := range all {
		for _, path := range p.imports {
			importers[path] = append(importers[path], p)
		}
		for _, path := range p.testImports {
			testers[path] = append(testers[path], p)
		}
	}
	distance, tested := map[*pkg]int{}, map[*pkg]int{}
	for _, p := range changed {
		distance[p], tested[p] = 0, 0
	}
	for todo := slices.Clone(changed); len(todo) > 0; todo = todo[1:] {
		from := todo[0]
		for _, p := range importers[from.path] {
			if _, seen := distance[p]; !seen {
				distance[p] = distance[from] + 1
				todo = append(todo, p)
			}
		}
		for _, p := range slices.Concat(importers[from.path], testers[from.path]) {
			if old, seen := tested[p]; !seen || distance[from]+1 < old {
				tested[p] = distance[from] + 1
			}
		}
	}
	var list []*pkg
	for _, p := range all {
		if _, ok := tested[p]; ok && p.tests {
			list = append(list, p)
		}
	}
	slices.SortStableFunc(list, func(a, b *pkg) int {
		return cmp.Or(cmp.Compare(tested[a], tested[b]), cmp.Compare(a.directory, b.directory))
	})
	return list
}

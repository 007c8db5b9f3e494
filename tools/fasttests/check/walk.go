package check

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// walker builds the graph of a package from its syntax.
type walker struct {
	*graph
	pass *analysis.Pass
	// own are the functions with a body in one of the files.
	own map[*types.Func]bool
	// files are the sources of the graph.
	files map[*token.File]bool
}

func isTest(pass *analysis.Pass, at token.Pos) bool {
	return strings.HasSuffix(pass.Fset.File(at).Name(), "_test.go")
}

// file walks all declarations of a file.
func (w *walker) file(f *ast.File) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if fn, ok := w.pass.TypesInfo.Defs[d.Name].(*types.Func); ok && d.Body != nil {
				w.walk(fn, d.Body)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if v, ok := s.(*ast.ValueSpec); ok {
					w.spec(initialisers, v)
				}
			}
		}
	}
}

// spec binds the values of a declaration to its variables.
func (w *walker) spec(n node, s *ast.ValueSpec) {
	if s.Type != nil && s.Names[0].Name != "_" {
		w.walk(n, s.Type)
		w.make(n, w.pass.TypesInfo.Types[s.Type].Type)
	}
	for i, value := range s.Values {
		switch name := s.Names[min(i, len(s.Names)-1)]; {
		case name.Name != "_":
			w.bind(n, value, w.pass.TypesInfo.Defs[name])
		case n != initialisers:
			w.walk(n, value)
		}
	}
}

// make records that a node creates a value of a type.
func (w *walker) make(n node, t types.Type) {
	if named, ok := types.Unalias(t).(*types.Named); ok && named.Obj().Pkg() == w.pass.Pkg {
		w.made[n] = append(w.made[n], named.Origin())
	}
}

// walk adds to the graph what code does when n runs: its calls, and the values that it creates.
func (w *walker) walk(n node, code ast.Node) {
	ast.Inspect(code, func(x ast.Node) bool {
		switch x := x.(type) {
		case *ast.FuncLit, *ast.CallExpr, *ast.CompositeLit, *ast.SelectorExpr, *ast.Ident:
			w.bind(n, x.(ast.Expr), n)
			return false
		case *ast.KeyValueExpr:
			w.walk(n, x.Value) // a key is not code
			return false
		case *ast.ValueSpec:
			w.spec(n, x)
			return false
		case *ast.AssignStmt:
			w.assign(n, x)
			return false
		case *ast.ReturnStmt:
			for _, r := range x.Results {
				w.bind(n, r, result{n})
			}
			return false
		case *ast.RangeStmt:
			if value := w.variable(x.Value); value != nil {
				w.bind(n, x.X, value)
			} else {
				w.walk(n, x.X)
			}
			w.walk(n, x.Body)
			return false
		}
		return true
	})
}

func (w *walker) assign(n node, x *ast.AssignStmt) {
	for i, r := range x.Rhs {
		v := w.variable(x.Lhs[i])
		switch blank, _ := x.Lhs[i].(*ast.Ident); {
		case blank != nil && blank.Name == "_":
			w.bind(n, r, nowhere)
		case v == nil:
			w.bind(n, r, n)
		case !w.tracked(v):
			w.later(n, r)
		default:
			w.bind(n, r, v)
		}
		for ; len(x.Rhs) == 1 && i+1 < len(x.Lhs); i++ { // f, g := two()
			if v := w.variable(x.Lhs[i+1]); v != nil {
				w.result(r, v)
			}
		}
	}
	for _, l := range x.Lhs {
		switch l := ast.Unparen(l).(type) {
		case *ast.SelectorExpr:
			w.walk(n, l.X)
		case *ast.IndexExpr:
			w.walk(n, l.Index)
		}
	}
}

// result binds the results of a call.
func (w *walker) result(call ast.Expr, into node) {
	if c, ok := ast.Unparen(call).(*ast.CallExpr); ok {
		if callee := w.callee(c); callee != nil {
			w.edge(into, result{callee})
		}
	}
}

// variable returns the variable or field of an expression, or nil.
func (w *walker) variable(e ast.Expr) *types.Var {
	var obj types.Object
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		obj = w.pass.TypesInfo.ObjectOf(e)
	case *ast.SelectorExpr:
		obj = w.pass.TypesInfo.ObjectOf(e.Sel)
	case *ast.IndexExpr:
		return w.variable(e.X)
	case *ast.StarExpr:
		return w.variable(e.X)
	}
	if v, ok := obj.(*types.Var); ok && v.Name() != "_" {
		return v.Origin()
	}
	return nil
}

// tracked reports whether the graph has all callers of a variable's functions.
func (w *walker) tracked(v *types.Var) bool {
	return v.Pkg() == w.pass.Pkg && w.files[w.pass.Fset.File(v.Pos())]
}

// later binds a value to code that is not in the graph. If the node creates a bubble, that code probably runs in the
// bubble.
func (w *walker) later(n node, value ast.Expr) {
	into := new(node) // intermediate node
	w.parents[into] = n
	w.bind(n, value, into)
	w.any[n] = append(w.any[n], into)
	w.deferred = append(w.deferred, [2]node{n, into})
}

// bind adds n's actions to create a value, and edges from into to functions in the value.
func (w *walker) bind(n node, value ast.Expr, into node) {
	switch e := ast.Unparen(value).(type) {
	case *ast.FuncLit:
		w.parents[e] = n
		w.walk(e, e.Body)
		w.edge(into, e)
	case *ast.Ident:
		w.refer(e, into)
	case *ast.SelectorExpr:
		if _, isPackage := w.pass.TypesInfo.ObjectOf(w.root(e.X)).(*types.PkgName); !isPackage {
			w.walk(n, e.X)
		}
		w.refer(e.Sel, into)
	case *ast.CompositeLit:
		w.composite(n, e, into)
	case *ast.UnaryExpr, *ast.StarExpr, *ast.TypeAssertExpr, *ast.SliceExpr:
		w.bind(n, operand(e), into)
	case *ast.IndexExpr:
		w.bind(n, e.X, into)
		w.walk(n, e.Index)
	case *ast.CallExpr:
		w.call(n, e, into)
	case nil:
	default:
		ast.Inspect(e, func(x ast.Node) bool {
			if x == e {
				return true
			}
			if x != nil {
				w.walk(n, x)
			}
			return false
		})
	}
}

// operand returns the expression to which another one belongs or refers.
func operand(e ast.Expr) ast.Expr {
	switch e := e.(type) {
	case *ast.UnaryExpr:
		return e.X
	case *ast.StarExpr:
		return e.X
	case *ast.TypeAssertExpr:
		return e.X
	case *ast.SliceExpr:
		return e.X
	}
	return nil
}

// root returns the identifier of a package name, or of a name without an object.
func (w *walker) root(e ast.Expr) *ast.Ident {
	if id, ok := e.(*ast.Ident); ok {
		return id
	}
	return new(ast.Ident)
}

// refer adds the meaning of an identifier: a function, a variable that may contain functions, or something forbidden.
func (w *walker) refer(id *ast.Ident, into node) {
	switch obj := w.pass.TypesInfo.Uses[id].(type) {
	case *types.Func:
		fn := obj.Origin()
		w.forbid(id, fn, into)
		if w.own[fn] {
			w.edge(into, fn)
		}
	case *types.Var:
		if v := obj.Origin(); node(v) != into {
			w.edge(into, v)
		}
	case *types.TypeName:
		w.forbid(id, obj, into)
	}
}

func (w *walker) forbid(id *ast.Ident, obj types.Object, into node) {
	r, name := ruleOf(obj)
	if obj.Pkg() == w.pass.Pkg { // tests of package wait itself
		r = allowed
	}
	if r == allowed {
		var fact usesClock
		if fn, ok := obj.(*types.Func); !ok || fn.Pkg() == nil || fn.Pkg() == w.pass.Pkg ||
			!w.pass.ImportObjectFact(fn, &fact) {
			return
		}
		r, name = clock, obj.Name()+" ("+fact.Call+")"
	}
	w.use(into, use{id.Pos(), r, name})
}

// composite binds the elements of a literal: a struct's elements to its fields.
func (w *walker) composite(n node, lit *ast.CompositeLit, into node) {
	t := w.pass.TypesInfo.Types[lit].Type
	if p, ok := t.Underlying().(*types.Pointer); ok { // &T omitted in a slice
		t = p.Elem()
	}
	if lit.Type != nil {
		w.walk(n, lit.Type)
	}
	w.make(n, t)
	fields, isStruct := t.Underlying().(*types.Struct)
	for i, e := range lit.Elts {
		key, hasKey := e.(*ast.KeyValueExpr)
		if hasKey {
			e = key.Value
		}
		if !isStruct {
			if hasKey {
				w.walk(n, key.Key)
			}
			w.bind(n, e, into)
			continue
		}
		f := fields.Field(min(i, fields.NumFields()-1))
		if hasKey {
			f, _ = w.pass.TypesInfo.Uses[key.Key.(*ast.Ident)].(*types.Var)
		}
		if f != nil && w.tracked(f.Origin()) {
			w.bind(n, e, f.Origin())
		} else {
			w.later(n, e)
		}
	}
}

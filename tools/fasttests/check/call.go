package check

import (
	"go/ast"
	"go/types"
	"slices"

	"golang.org/x/tools/go/types/typeutil"
)

// callee returns the function that a call names, nil for a call through a variable or an interface.
func (w *walker) callee(call *ast.CallExpr) *types.Func {
	if fn, ok := typeutil.Callee(w.pass.TypesInfo, call).(*types.Func); ok {
		return fn.Origin()
	}
	return nil
}

// call adds a call of a function by n, and binds its results.
func (w *walker) call(n node, call *ast.CallExpr, into node) {
	if w.pass.TypesInfo.Types[call.Fun].IsType() { // a conversion
		w.make(n, w.pass.TypesInfo.Types[call.Fun].Type)
		w.bind(n, call.Args[0], into)
		return
	}
	if id, ok := ast.Unparen(call.Fun).(*ast.Ident); ok {
		if _, ok := w.pass.TypesInfo.Uses[id].(*types.Builtin); ok {
			w.builtin(n, id.Name, call.Args, into)
			return
		}
	}
	w.bind(n, call.Fun, n)
	callee := w.callee(call)
	if callee != nil && w.own[callee] {
		w.edge(into, result{callee})
		w.calls = append(w.calls, [2]node{n, callee})
	}
	bubbles, makes := w.bubblesOf(callee)
	if makes {
		w.maker(n)
	}
	for i, arg := range call.Args {
		switch {
		case slices.Contains(bubbles, i):
			w.bindBubble(n, arg)
		case callee != nil && w.own[callee]:
			w.bind(n, arg, parameter(callee, i))
		default:
			w.bind(n, arg, n)
		}
	}
}

func (w *walker) builtin(n node, name string, args []ast.Expr, into node) {
	if name == "new" {
		w.make(n, w.pass.TypesInfo.Types[args[0]].Type)
	}
	for _, arg := range args {
		if name == "append" {
			w.bind(n, arg, into)
		} else {
			w.bind(n, arg, n)
		}
	}
}

// parameter returns the parameter for argument i of a call.
func parameter(fn *types.Func, i int) *types.Var {
	all := fn.Signature().Params()
	return all.At(min(i, all.Len()-1)).Origin()
}

// bubblesOf returns the arguments that a function of another package runs in a bubble, and whether it creates a bubble.
func (w *walker) bubblesOf(fn *types.Func) ([]int, bool) {
	if fn == nil || fn.Pkg() == nil || fn.Pkg() == w.pass.Pkg {
		return nil, false
	}
	if at, ok := bubbles[fn.FullName()]; ok {
		return []int{at}, true
	}
	var fact makesBubble
	makes := w.pass.ImportObjectFact(fn, &fact)
	return fact.Params, makes
}

// bindBubble adds a function that n runs in a bubble.
func (w *walker) bindBubble(n node, arg ast.Expr) {
	if v := w.variable(arg); v != nil {
		w.any[n] = append(w.any[n], v)
		w.edge(bubble, v)
		return
	}
	from := len(w.any[bubble])
	w.bind(n, arg, bubble)
	w.any[n] = append(w.any[n], w.any[bubble][from:]...)
}

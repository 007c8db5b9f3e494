package check

import (
	"go/token"
	"go/types"
	"slices"
)

// node is code, or a variable through which functions are called: *types.Func, *ast.FuncLit, *types.Var, result, or one
// of the following constants.
type node any

// result represents the results of a function.
type result struct{ of node }

type place string

const (
	// initialisers of variables of the package run outside of bubbles.
	initialisers place = "a variable of the package"
	// nowhere stands for code that is never called.
	nowhere place = "nothing"
	// bubble runs functions in virtual time.
	bubble place = "bubble"
)

// use is a use of something forbidden.
type use struct {
	pos  token.Pos
	rule rule
	name string
}

// graph has edges from a node to the nodes that run with it.
type graph struct {
	// outside has edges to nodes that run outside of a bubble if the first node does.
	outside map[node][]node
	// any also has edges to nodes that run in a bubble.
	any   map[node][]node
	uses  map[node][]use
	order []node // of uses
	// parents are the nodes around function literals.
	parents map[node]node
	// makers are nodes that create a bubble: by themselves, in a literal or by a call.
	makers map[node]bool
	// deferred are edges that apply unless the first node creates a bubble, since the caller of the second is unknown.
	deferred [][2]node
	// calls of functions of this package.
	calls [][2]node
	// made are the types of values that nodes create.
	made map[node][]*types.Named
}

func newGraph() *graph {
	return &graph{
		outside: map[node][]node{}, any: map[node][]node{}, uses: map[node][]use{}, parents: map[node]node{},
		makers: map[node]bool{}, made: map[node][]*types.Named{},
	}
}

func (g *graph) edge(from, to node) {
	if from != bubble {
		g.outside[from] = append(g.outside[from], to)
	}
	g.any[from] = append(g.any[from], to)
}

func (g *graph) use(n node, u use) {
	if g.uses[n] == nil {
		g.order = append(g.order, n)
	}
	g.uses[n] = append(g.uses[n], u)
}

// maker marks a node and its parents.
func (g *graph) maker(n node) {
	for ; n != nil; n = g.parents[n] {
		g.makers[n] = true
	}
}

// declared returns the function declaration that contains a node, or the node itself.
func (g *graph) declared(n node) node {
	for g.parents[n] != nil {
		n = g.parents[n]
	}
	return n
}

// reach returns the nodes reachable from the roots, each with its root.
func reach(edges map[node][]node, roots ...node) map[node]node {
	reached := map[node]node{}
	for _, root := range roots {
		todo := []node{root}
		for len(todo) > 0 {
			n := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			if reached[n] == nil {
				reached[n] = root
				todo = append(todo, edges[n]...)
			}
		}
	}
	return reached
}

// settle adds edges that depend on all other edges.
func (g *graph) settle() {
	for marked := -1; marked < len(g.makers); {
		marked = len(g.makers)
		for _, call := range g.calls {
			if g.makers[call[1]] {
				g.maker(call[0])
			}
		}
	}
	for _, e := range g.deferred {
		if !g.makers[e[0]] {
			g.edge(e[0], e[1])
		}
	}
	g.dispatch()
}

// dispatch adds edges to methods that are only called through interfaces, from nodes that create a value of their type.
// If a bubble also creates one, the caller is unknown, and the methods count as called in the bubble.
func (g *graph) dispatch() {
	named := map[node]bool{}
	for _, all := range g.any {
		for _, n := range all {
			named[n] = true
		}
	}
	virtual, inside := map[*types.Named]bool{}, reach(g.any, bubble)
	for n, all := range g.made {
		for _, t := range all {
			virtual[t] = virtual[t] || inside[n] != nil || g.makers[n]
		}
	}
	for n, all := range g.made {
		for _, t := range all {
			for method := range types.NewMethodSet(types.NewPointer(t)).Methods() {
				m := node(method.Obj().(*types.Func).Origin())
				switch {
				case named[m]:
				case virtual[t]:
					g.any[n] = append(g.any[n], m)
				default:
					g.edge(n, m)
				}
			}
		}
	}
}

// firstWait returns the name of the first use of a clock in nodes, or "".
func (g *graph) firstWait(reached map[node]node) string {
	i := slices.IndexFunc(g.order, func(n node) bool {
		return reached[n] != nil && slices.ContainsFunc(g.uses[n], func(u use) bool { return u.rule == clock })
	})
	if i < 0 {
		return ""
	}
	all := g.uses[g.order[i]]
	return all[slices.IndexFunc(all, func(u use) bool { return u.rule == clock })].name
}

// nameOf names a node by the declaration that contains it.
func (g *graph) nameOf(n node) string {
	switch n := g.declared(n).(type) {
	case *types.Func:
		if recv := n.Signature().Recv(); recv != nil {
			t := recv.Type()
			if p, ok := t.(*types.Pointer); ok {
				t = p.Elem()
			}
			if named, ok := t.(*types.Named); ok {
				return named.Obj().Name() + "." + n.Name()
			}
		}
		return n.Name()
	case place:
		return string(n)
	case *types.Var:
		return "a function in " + n.Name()
	case result:
		return g.nameOf(n.of)
	}
	return "a function"
}

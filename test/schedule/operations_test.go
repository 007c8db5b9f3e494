package schedule

import (
	"context"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

const longestStall = sendTimeout + 20*time.Second

// operation is one kind of event, with its weight among all.
type operation struct {
	weight int
	do     func(w *world, ctx context.Context)
}

var operations = []operation{
	{40, func(w *world, _ context.Context) {
		for range 1 + w.random.IntN(3) {
			w.change(w.anyMesh())
		}
	}},
	{4, func(w *world, _ context.Context) { w.spoil(w.anyFile()) }},
	{3, func(w *world, _ context.Context) { w.spoilAndLook(w.anyFile()) }},
	{5, func(w *world, _ context.Context) {
		if files := w.spoilt(); len(files) > 0 {
			w.note("mend %s", files[0])
			w.write(files[0])
		}
	}},
	{6, func(w *world, _ context.Context) {
		w.observe(mesh.MakeID(w.anyMesh(), proxyName(w.random)), mesh.Observation{Draining: w.random.IntN(2) == 0})
	}},
	{2, func(w *world, _ context.Context) {
		w.note("endpoints change again and again")
		for range 40 {
			w.observe(mesh.MakeID(w.anyMesh(), proxyName(w.random)), mesh.Observation{Draining: w.random.IntN(2) == 0})
			time.Sleep(110 * time.Millisecond)
		}
	}},
	{3, func(w *world, _ context.Context) {
		if w.plane != nil {
			w.kill()
		}
	}},
	{8, func(w *world, ctx context.Context) {
		if w.plane == nil {
			w.start(ctx)
		}
	}},
	{8, func(w *world, _ context.Context) {
		if c := w.anyClient(); c != nil {
			w.note("%s disconnects", c.name)
			c.disconnect()
		}
	}},
	{4, func(w *world, _ context.Context) {
		if c := w.anyClient(); c != nil {
			w.note("%s is lost, and the server does not know", c.name)
			w.halfOpen = append(w.halfOpen, c.pipe)
			c.leave()
		}
	}},
	{4, func(w *world, _ context.Context) {
		if c := w.anyClient(); c != nil {
			d := time.Duration(w.random.Int64N(int64(longestStall)))
			w.note("%s does not read for %s", c.name, d)
			c.stall(d)
		}
	}},
	{3, func(w *world, _ context.Context) {
		if c := w.anyClient(); c != nil && c.refusalRate.Load() > 0 {
			w.note("%s refuses other things", c.name)
			c.refuseOthers(w.random)
		}
	}},
	{1, func(w *world, _ context.Context) {
		if c := w.anyClient(); c != nil && len(w.clients) > 1 {
			w.note("%s leaves for ever", c.name)
			c.disconnect()
			w.clients = slices.DeleteFunc(w.clients, func(other *client) bool { return other == c })
		}
	}},
	{2, func(w *world, _ context.Context) {
		if w.joined < 6 {
			w.join()
		}
	}},
}

// operate makes one random operation.
func (w *world) operate(ctx context.Context) {
	sum := 0
	for _, o := range operations {
		sum += o.weight
	}
	n := w.random.IntN(sum)
	for _, o := range operations {
		if n -= o.weight; n < 0 {
			o.do(w, ctx)
			return
		}
	}
}

// change sets or deletes one object.
func (w *world) change(meshName string) {
	r := w.random
	var o mesh.Object
	switch n := r.IntN(10); {
	case n == 0:
		o = meshOf(meshName, anyMode(r))
	case n < 4:
		o = anyService(r, meshName, serviceName(r))
	default:
		o = anyDataplane(r, meshName, proxyName(r))
	}
	key := o.Key()
	if r.IntN(4) == 0 {
		o = nil
	}
	w.put(key, o)
}

func (w *world) observe(id mesh.ID, o mesh.Observation) {
	w.note("observe %s: %+v", id, o)
	w.observed[id] = o
	if w.plane != nil {
		w.plane.Builder.Observe(id, o)
	}
}

// anyFile returns the file of any Mesh, which may not exist, or of an existing object.
func (w *world) anyFile() string {
	files := []string{w.fileOf((&mesh.Mesh{Name: mesh.DefaultMesh}).Key())}
	for _, k := range w.keys() {
		if file := w.fileOf(k); file != "" {
			files = append(files, file)
		}
	}
	return pick(w.random, files...)
}

// spoilAndLook breaks a good file and changes nothing else, whatever the state of the others. No client may notice.
func (w *world) spoilAndLook(file string) {
	if w.plane == nil || w.broken[file] || len(w.text(file)) == 0 {
		return
	}
	settle(soon)
	before := w.plane.Builder.View()
	w.spoil(file)
	settle(soon)
	if w.plane.Builder.View() != before {
		w.wrong("a broken file changes the view")
	}
}

// spoilt returns the broken files.
func (w *world) spoilt() []string {
	var files []string
	for file := range w.broken {
		files = append(files, file)
	}
	slices.Sort(files)
	return files
}

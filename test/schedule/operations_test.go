package schedule

import (
	"context"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/anymesh"
)

const longestStall = sendTimeout + 20*time.Second

// operation is one kind of event, with its weight among all.
type operation struct {
	weight int
	do     func(s *simulation, ctx context.Context)
}

var operations = []operation{
	{40, func(s *simulation, _ context.Context) {
		for range 1 + s.random.IntN(3) {
			s.change(s.anyMesh())
		}
	}},
	{4, func(s *simulation, _ context.Context) { s.breakFile(s.anyFile()) }},
	{3, func(s *simulation, _ context.Context) { s.breakUnnoticed(s.anyFile()) }},
	{5, func(s *simulation, _ context.Context) {
		if files := s.brokenFiles(); len(files) > 0 {
			s.Note("mend %s", files[0])
			s.write(files[0])
		}
	}},
	{6, func(s *simulation, _ context.Context) {
		s.observe(mesh.MakeID(s.anyMesh(), s.anyProxy()), mesh.Observation{Draining: s.random.IntN(2) == 0})
	}},
	{2, func(s *simulation, _ context.Context) {
		s.Note("endpoints change again and again")
		for range 40 {
			s.observe(mesh.MakeID(s.anyMesh(), s.anyProxy()), mesh.Observation{Draining: s.random.IntN(2) == 0})
			time.Sleep(110 * time.Millisecond)
		}
	}},
	{3, func(s *simulation, _ context.Context) {
		if s.plane != nil {
			s.kill()
		}
	}},
	{8, func(s *simulation, ctx context.Context) {
		if s.plane == nil {
			s.start(ctx)
		}
	}},
	{8, func(s *simulation, _ context.Context) {
		if c := s.anyClient(); c != nil {
			s.Note("%s disconnects", c.name)
			c.disconnect()
		}
	}},
	{4, func(s *simulation, _ context.Context) {
		if c := s.anyClient(); c != nil {
			s.Note("%s is lost, and the server does not know", c.name)
			s.halfOpen = append(s.halfOpen, c.pipe)
			c.vanish()
		}
	}},
	{4, func(s *simulation, _ context.Context) {
		if c := s.anyClient(); c != nil {
			d := time.Duration(s.random.Int64N(int64(longestStall)))
			s.Note("%s does not read for %s", c.name, d)
			c.stall(d)
		}
	}},
	{3, func(s *simulation, _ context.Context) {
		if c := s.anyClient(); c != nil && c.refusalRate.Load() > 0 {
			s.Note("%s refuses other things", c.name)
			c.refuseOthers(s.random)
		}
	}},
	{1, func(s *simulation, _ context.Context) {
		if c := s.anyClient(); c != nil && len(s.clients) > 1 {
			s.Note("%s is removed", c.name)
			c.disconnect()
			s.clients = slices.DeleteFunc(s.clients, func(other *client) bool { return other == c })
		}
	}},
	{2, func(s *simulation, _ context.Context) {
		if s.joined < 6 {
			s.join()
		}
	}},
}

// operate makes one random operation.
func (s *simulation) operate(ctx context.Context) {
	i := anymesh.Weighted(s.random, len(operations), func(i int) int { return operations[i].weight })
	operations[i].do(s, ctx)
}

// change sets or deletes one object.
func (s *simulation) change(meshName string) {
	r := s.random
	var o mesh.Object
	switch n := r.IntN(10); {
	case n == 0:
		o = anymesh.Mesh(r, meshName)
	case n < 3:
		o = s.service(meshName, s.anyService())
	case n < 5:
		o = s.meshService(meshName, s.anyService())
	default:
		o = s.dataplane(meshName, s.anyProxy())
	}
	key := o.Key()
	if r.IntN(4) == 0 {
		o = nil
	}
	s.put(key, o)
}

func (s *simulation) observe(id mesh.ID, o mesh.Observation) {
	s.Note("observe %s: %+v", id, o)
	s.observed[id] = o
	if s.plane != nil {
		s.plane.Builder.Observe(id, o)
	}
}

// anyFile returns the file of any Mesh, existing or not, or of an existing object.
func (s *simulation) anyFile() string {
	files := []string{s.fileOf((&mesh.Mesh{Name: mesh.DefaultMesh}).Key())}
	for _, k := range s.keys() {
		if file := s.fileOf(k); file != "" {
			files = append(files, file)
		}
	}
	return anymesh.Pick(s.random, files...)
}

// breakUnnoticed breaks a valid file and changes nothing else, whatever the state of the others. No client may be
// affected.
func (s *simulation) breakUnnoticed(file string) {
	if s.plane == nil || s.broken[file] || len(s.text(file)) == 0 {
		return
	}
	settle(soon)
	before := s.plane.Builder.View()
	s.breakFile(file)
	settle(soon)
	if s.plane.Builder.View() != before {
		s.Wrong("a broken file changes the view")
	}
}

// brokenFiles returns the broken files, sorted.
func (s *simulation) brokenFiles() []string {
	var files []string
	for file := range s.broken {
		files = append(files, file)
	}
	slices.Sort(files)
	return files
}

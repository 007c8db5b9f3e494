//go:build soak

package soak

import (
	"fmt"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/anymesh"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// operation is one kind of event, with its weight among all.
type operation struct {
	weight int
	name   string
	do     func(s *soak)
}

var operations = []operation{
	{30, "endpoint changed", func(s *soak) { s.turn() }},
	{8, "Dataplane changed", func(s *soak) { s.change(s.anyDataplane()) }},
	{6, "Service changed", func(s *soak) { s.change(anyService(s.random, s.random.IntN(*services))) }},
	{4, "MeshService changed", func(s *soak) { s.change(anyMeshService(s.random, s.random.IntN(*services))) }},
	{1, "Mesh changed", func(s *soak) { s.change(anymesh.Mesh(s.random, anymesh.Pick(s.random, meshes...))) }},
	{3, "object deleted", func(s *soak) { s.remove() }},
	{2, "file renamed", func(s *soak) { s.rename() }},
	{3, "file broken", func(s *soak) { s.breakFile() }},
	{3, "file removed", func(s *soak) { s.removeFile() }},
	{6, "proxy disconnected", func(s *soak) { s.away(endClose) }},
	{3, "proxy crashed", func(s *soak) { s.away(endReset) }},
	{2, "proxy cut off", func(s *soak) { s.away(endVanish) }},
	{3, "proxy stopped reading", func(s *soak) { s.stall() }},
	{2, "proxy stopped answering", func(s *soak) { s.silence() }},
	{4, "proxy refused", func(s *soak) { s.refuseNext() }},
}

// operation makes one random operation.
func (s *soak) operation() {
	i := anymesh.Weighted(s.random, len(operations), func(i int) int { return operations[i].weight })
	s.counts.add("operation, " + operations[i].name)
	operations[i].do(s)
}

// wayToWrite draws how to write a file. Most editors and programs write it in one step.
func (s *soak) wayToWrite() int { return anymesh.Pick(s.random, atOnce, atOnce, inPlace, inHalves) }

func (s *soak) write(file string) { s.writer.write(file, s.wayToWrite()) }

func (s *soak) anyDataplane() *mesh.Dataplane {
	return anyDataplane(s.random, s.random.IntN(*proxies))
}

// turn changes one endpoint.
func (s *soak) turn() {
	i := s.random.IntN(*proxies)
	if d, ok := s.writer.objects[proxyKey(i)].(*mesh.Dataplane); ok {
		s.change(turn(s.random, d, i))
	}
}

// change adds an object or replaces it.
func (s *soak) change(o mesh.Object) {
	file := s.writer.fileOf[o.Key()]
	s.note("set %v in %s", o.Key(), file)
	s.writer.set(o, file)
	s.write(file)
}

// remove deletes an object, and restores it later.
func (s *soak) remove() {
	key := s.anyKey()
	o := s.writer.objects[key]
	s.note("delete %v", key)
	delete(s.writer.objects, key)
	s.write(s.writer.fileOf[key])
	s.later(s.upTo(20*time.Second), func() {
		if s.writer.objects[key] == nil {
			s.change(o)
		}
	})
}

// anyKey returns the key of any existing object.
func (s *soak) anyKey() mesh.Key {
	file := s.anyFile()
	return anymesh.Pick(s.random, s.writer.keys(file)...)
}

func (s *soak) anyFile() string { return anymesh.Pick(s.random, s.writer.files()...) }

// rename renames a file, if its content is correct.
func (s *soak) rename() {
	from, to := s.anyFile(), fmt.Sprintf("renamed-%03d.yaml", s.random.IntN(1000))
	w := s.writer
	if w.broken[from] || w.removed[from] || slices.Contains(w.files(), to) {
		return
	}
	w.write(from, atOnce) // otherwise a half-written or broken content would remain
	s.note("rename %s to %s", from, to)
	w.rename(from, to)
}

// breakFile breaks a file, and repairs it later.
func (s *soak) breakFile() {
	file := s.anyFile()
	s.writer.breakFile(file)
	s.later(s.upTo(30*time.Second), func() {
		if s.writer.broken[file] {
			s.note("mend %s", file)
			s.write(file)
		}
	})
}

// removeFile removes a file, and restores it later.
func (s *soak) removeFile() {
	file := s.anyFile()
	s.note("remove %s", file)
	s.writer.remove(file)
	delete(s.writer.broken, file)
	s.writer.removed[file] = true
	s.later(s.upTo(15*time.Second), func() {
		if s.writer.removed[file] {
			s.note("bring back %s", file)
			s.write(file)
		}
	})
}

func (s *soak) anyMember() *member { return anymesh.Pick(s.random, s.members...) }

// away has a proxy disconnect and reconnect, with or without its previous state.
func (s *soak) away(how int32) {
	m, cold := s.anyMember(), s.oneIn(2)
	s.note("%s leaves: %d", m.node, how)
	m.leave(how)
	s.later(s.upTo(10*time.Second), func() {
		s.note("%s comes, cold: %v", m.node, cold)
		m.join(cold)
	})
}

// stall keeps a proxy from reading for a while, sometimes for so long that the server disconnects it.
func (s *soak) stall() {
	m, d := s.anyMember(), s.upTo(15*time.Second)
	if s.oneIn(4) {
		d = s.upTo(75 * time.Second)
	}
	s.note("%s does not read for %s", m.node, d)
	m.faulty.Store(true)
	m.stalled.Store(time.Now().Add(d).UnixNano())
}

// silence reconnects a proxy, which then sends no ACKs for a while.
func (s *soak) silence() {
	m := s.anyMember()
	s.note("%s answers nothing", m.node)
	m.leave(endClose)
	m.silent.Store(true)
	m.join(false)
	s.later(s.upTo(20*time.Second), func() { s.endSilence(m) })
}

// endSilence ends a silence together with its stream, because missed responses on that stream are never
// ACKed.
func (s *soak) endSilence(m *member) {
	if m.silent.Swap(false) && m.cancel != nil {
		m.leave(endClose)
		m.join(false)
	}
}

// refuseNext has a proxy refuse the next resource of some type.
func (s *soak) refuseNext() {
	m := s.anyMember()
	d := &refusal{kind: anymesh.Pick(s.random, resource.Types()...), mute: s.oneIn(2)}
	s.note("%s is to refuse %s", m.node, d.kind.Short())
	m.refusal.Store(d)
}

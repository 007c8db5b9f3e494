package schedule

import (
	"context"
	"maps"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/store"
	"github.com/sonde-mesh/sonde/xds/resource"
)

const (
	// calm is longer than any stall plus the time that a client then needs.
	calm = longestStall + soon
	// soon is longer than the next scan of the directory or a cluster that warms in vain, plus the answers of clients that are not
	// slow.
	soon = 30 * time.Second
)

func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// mend brings back what is missing. After it no client refuses anything.
func (w *world) mend(ctx context.Context) {
	w.note("everything is mended")
	for _, p := range w.halfOpen {
		p.cancel()
	}
	w.halfOpen = nil
	for _, c := range w.clients {
		c.slowReader.Store(false)
		c.refusalRate.Store(0)
	}
	w.mendFiles()
	for _, c := range w.clients {
		meshName, name := mesh.SplitID(c.node)
		key := mesh.Key{Kind: mesh.KindDataplane, Mesh: meshName, Name: name}
		if w.objects[key] == nil {
			w.put(key, anyDataplane(w.random, meshName, name))
		}
	}
	if w.plane == nil {
		w.start(ctx)
	}
	settle(calm)
	for _, c := range w.clients {
		if !c.connected() {
			c.connect(w.random.IntN(4) > 0)
		}
	}
	settle(soon)
	w.lastChange()
	w.forgive()
}

// mendFiles writes the broken files again, and brings back all Meshes: objects without their Mesh are problems.
func (w *world) mendFiles() {
	for _, file := range w.spoilt() {
		w.write(file)
	}
	for _, name := range w.meshes {
		w.put((&mesh.Mesh{Name: name}).Key(), meshOf(name, anyMode(w.random)))
	}
}

// lastChange makes one more change. No later change can carry it along if it gets stuck.
func (w *world) lastChange() {
	id := pick(w.random, w.nodes()...)
	meshName, name := mesh.SplitID(id)
	if w.random.IntN(2) == 0 {
		w.observe(id, mesh.Observation{Draining: !w.observed[id].Draining})
	} else {
		w.put(mesh.Key{Kind: mesh.KindDataplane, Mesh: meshName, Name: name}, anyDataplane(w.random, meshName, name))
	}
	settle(soon)
}

// forgive reconnects clients that lack something which they once refused: a version is not sent twice on one stream.
func (w *world) forgive() {
	refused := map[string]bool{}
	for _, s := range w.plane.XDS.Status() {
		for _, t := range s.Types {
			if len(t.NACKs) > 0 {
				refused[s.Node] = true
			}
		}
	}
	for _, c := range w.clients {
		if refused[c.node] && c.envoy.refused {
			w.note("%s forgives", c.name)
			c.disconnect()
			c.connect(w.random.IntN(2) == 0)
		}
	}
	if len(refused) > 0 {
		settle(soon)
	}
}

// rest compares all clients with what the sources say and with new clients. Then all leave, and nothing of them may be left.
func (w *world) rest() {
	w.note("at rest")
	responses := map[*client]int64{}
	for _, c := range w.clients {
		responses[c] = c.responses.Load()
	}
	settle(soon)
	for _, c := range w.clients {
		if n := c.responses.Load() - responses[c]; n > 0 {
			w.wrong("%s gets %d responses, and nothing changes", c.name, n)
		}
	}
	fresh := w.fresh()
	for _, c := range w.clients {
		now, _ := w.plane.Translator.Resources(c.node)
		want, _ := fresh.Resources(c.node)
		if diff := cmp.Diff(versions(want), versions(now)); diff != "" {
			w.wrong("%s (-fresh control plane +Translator):\n%s", c.node, diff)
		}
		w.compare(c, "Translator", now)
		w.compare(c, "fresh control plane", want)
	}
	for _, sotw := range []bool{false, true} {
		w.newcomer(fresh, sotw)
	}
	w.forget()
}

// newcomer connects one more client of some proxy for a while.
func (w *world) newcomer(fresh *generator.Translator, sotw bool) {
	old := w.clients
	c := w.add(pick(w.random, w.nodes()...), sotw)
	c.refusalRate.Store(0)
	c.slowReader.Store(false)
	c.connect(false)
	settle(time.Second)
	desired, _ := fresh.Resources(c.node)
	w.compare(c, "what a new client should have", desired)
	c.disconnect()
	w.clients = old
}

func (w *world) nodes() []mesh.ID {
	var nodes []mesh.ID
	seen := map[mesh.ID]bool{}
	for _, c := range w.clients {
		if !seen[c.node] {
			seen[c.node] = true
			nodes = append(nodes, c.node)
		}
	}
	return nodes
}

// fresh returns a Translator that got everything that the sources say in one step.
func (w *world) fresh() *generator.Translator {
	b := meshview.NewBuilder(meshview.Options{Sources: []string{sourceFiles, sourceDirect}})
	documents, problems, err := store.Read(w.directory, nil)
	if err != nil {
		w.wrong("%v", err)
	}
	for _, p := range problems {
		w.wrong("mended, and still: %v", p)
	}
	for _, d := range documents {
		b.Set(sourceFiles, d.Object)
	}
	for _, k := range w.keys() {
		if w.fileOf(k) == "" {
			b.Set(sourceDirect, w.objects[k])
		}
	}
	for id, o := range w.observed {
		b.Observe(id, o)
	}
	b.Synced(sourceFiles)
	b.Synced(sourceDirect)
	t := generator.NewTranslator(generator.TranslatorOptions{Report: func(err error) { w.wrong("resource generation failed: %v", err) }})
	if c, ok := b.Build(); ok {
		if _, err := t.Apply(c); err != nil {
			w.wrong("resource generation failed: %v", err)
		}
	}
	for _, node := range w.nodes() {
		t.Attach(node) // its resources are made once, and used by all comparisons
	}
	return t
}

// versions returns the versions of everything desired, whether asked for or not.
func versions(d resource.Desired) map[resource.Name]string {
	all := map[resource.Name]string{}
	for _, t := range resource.Types() {
		for _, r := range d.Of(t) {
			all[r.Key()] = r.Version
		}
	}
	return all
}

// compare reports what differs between a client and what it should have.
func (w *world) compare(c *client, with string, want resource.Desired) {
	if !c.connected() {
		w.wrong("%s has no stream", c.name)
		return
	}
	has, inUse := map[resource.Name]string{}, map[string]string{}
	for n, t := range c.envoy.has {
		has[n] = t.version
	}
	if diff := cmp.Diff(w.books.needed(want), has); diff != "" {
		w.wrong("%s (-%s +client):\n%s", c.name, with, diff)
	}
	for name, l := range c.envoy.active {
		inUse[name] = l.version
	}
	for n := range maps.Clone(has) {
		if n.Type == resource.Listener && inUse[n.Name] != has[n] {
			w.wrong("%s has listener %s not in use", c.name, n.Name)
		}
	}
	if len(c.envoy.warming)+len(c.withheld) > 0 {
		w.wrong("%s still warms %v", c.name, c.envoy.warming)
	}
}

// forget checks that the stages keep nothing of proxies that have left: an attached proxy would keep what it had even without
// its Dataplane.
func (w *world) forget() {
	w.note("all leave")
	for _, c := range w.clients {
		if c.connected() {
			c.disconnect()
		}
	}
	settle(soon)
	w.plane.empty()
	for _, k := range w.keys() {
		if k.Kind == mesh.KindDataplane {
			w.put(k, nil)
		}
	}
	settle(soon)
	for _, node := range w.nodes() {
		if _, known := w.plane.Translator.Resources(node); known {
			w.wrong("the Translator keeps %s, which has neither stream nor Dataplane", node)
		}
	}
}

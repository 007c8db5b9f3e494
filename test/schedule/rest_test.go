package schedule

import (
	"context"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/store"
	"github.com/sonde-mesh/sonde/test/anymesh"
	"github.com/sonde-mesh/sonde/xds/resource"
)

const (
	// longPause is longer than any stall plus the client's time to recover.
	longPause = longestStall + soon
	// soon is longer than the next scan of the directory, or than a cluster waits in vain for its endpoints, plus the
	// responses of clients that are not slow.
	soon = 30 * time.Second
)

func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// mend restores everything. Afterwards, no client refuses a resource.
func (s *simulation) mend(ctx context.Context) {
	s.Note("everything is mended")
	for _, p := range s.halfOpen {
		p.cancel()
	}
	s.halfOpen = nil
	for _, c := range s.clients {
		c.slowReader.Store(false)
		c.refusalRate.Store(0)
	}
	s.mendFiles()
	for _, c := range s.clients {
		meshName, name := mesh.SplitID(c.node())
		key := mesh.Key{Kind: mesh.KindDataplane, Mesh: meshName, Name: name}
		if s.objects[key] == nil {
			s.put(key, s.dataplane(meshName, name))
		}
	}
	if s.plane == nil {
		s.start(ctx)
	}
	settle(longPause)
	for _, c := range s.clients {
		if !c.connected() {
			c.connect(s.random.IntN(4) > 0)
		}
	}
	settle(soon)
	s.lastChange()
	s.forgive()
}

// mendFiles rewrites the broken files, and restores all Meshes, because objects without their Mesh are
// problems.
func (s *simulation) mendFiles() {
	for _, file := range s.brokenFiles() {
		s.write(file)
	}
	for _, name := range s.meshes {
		s.put((&mesh.Mesh{Name: name}).Key(), anymesh.Mesh(s.random, name))
	}
}

// lastChange makes one more change: no later change replaces it if it gets stuck.
func (s *simulation) lastChange() {
	id := anymesh.Pick(s.random, s.nodes()...)
	meshName, name := mesh.SplitID(id)
	if s.random.IntN(2) == 0 {
		s.observe(id, mesh.Observation{Draining: !s.observed[id].Draining})
	} else {
		s.put(mesh.Key{Kind: mesh.KindDataplane, Mesh: meshName, Name: name}, s.dataplane(meshName, name))
	}
	settle(soon)
}

// forgive reconnects clients that lack a resource that they once refused, because the server sends a version only
// once per stream.
func (s *simulation) forgive() {
	refused := map[string]bool{}
	for _, status := range s.plane.XDS.Status() {
		for _, t := range status.Types {
			if len(t.NACKs) > 0 {
				refused[status.Node] = true
			}
		}
	}
	for _, c := range s.clients {
		if refused[c.node()] && c.envoy.Refused() {
			s.Note("%s forgives", c.name)
			c.disconnect()
			c.connect(s.random.IntN(2) == 0)
		}
	}
	if len(refused) > 0 {
		settle(soon)
	}
}

// rest compares all clients with the sources and with new clients. Then all disconnect, and no stage may keep
// anything of them.
func (s *simulation) rest() {
	s.Note("at rest")
	responses := map[*client]int64{}
	for _, c := range s.clients {
		responses[c] = c.responses.Load()
	}
	settle(soon)
	for _, c := range s.clients {
		if n := c.responses.Load() - responses[c]; n > 0 {
			s.Wrong("%s gets %d responses, and nothing changes", c.name, n)
		}
	}
	fresh := s.fresh()
	for _, c := range s.clients {
		now, _ := s.plane.Translator.Resources(c.node())
		want, _ := fresh.Resources(c.node())
		if diff := cmp.Diff(versions(want), versions(now)); diff != "" {
			s.Wrong("%s (-fresh control plane +Translator):\n%s", c.node(), diff)
		}
		s.compare(c, "Translator", now)
		s.compare(c, "fresh control plane", want)
	}
	for _, p := range envoysim.Protocols() {
		s.newcomer(fresh, p)
	}
	s.forget()
}

// newcomer connects one more client of some proxy for a while.
func (s *simulation) newcomer(fresh *generator.Translator, p envoysim.Protocol) {
	old := s.clients
	c := s.add(anymesh.Pick(s.random, s.nodes()...), p)
	c.refusalRate.Store(0)
	c.slowReader.Store(false)
	c.connect(false)
	settle(time.Second)
	desired, _ := fresh.Resources(c.node())
	s.compare(c, "what a new client should have", desired)
	c.disconnect()
	s.clients = old
}

func (s *simulation) nodes() []mesh.ID {
	var nodes []mesh.ID
	seen := map[mesh.ID]bool{}
	for _, c := range s.clients {
		if !seen[c.node()] {
			seen[c.node()] = true
			nodes = append(nodes, c.node())
		}
	}
	return nodes
}

// fresh returns a Translator that received the sources in one step.
func (s *simulation) fresh() *generator.Translator {
	b := meshview.NewBuilder(meshview.Options{Sources: []string{sourceFiles, sourceDirect}})
	documents, problems, err := store.Read(s.directory, nil, "")
	if err != nil {
		s.Wrong("%v", err)
	}
	for _, p := range problems {
		if p.Severity == store.Error { // warnings are about outbounds to missing services, and the like
			s.Wrong("mended, and still: %v", p)
		}
	}
	for _, d := range documents {
		b.Set(sourceFiles, d.Object)
	}
	for _, k := range s.keys() {
		if s.fileOf(k) == "" {
			b.Set(sourceDirect, s.objects[k])
		}
	}
	for id, o := range s.observed {
		b.Observe(id, o)
	}
	b.Synced(sourceFiles)
	b.Synced(sourceDirect)
	t := generator.NewTranslator(generator.TranslatorOptions{Report: func(err error) { s.Wrong("failed to generate resources: %v", err) }})
	if c, ok := b.Build(); ok {
		if _, err := t.Apply(c); err != nil {
			s.Wrong("failed to generate resources: %v", err)
		}
	}
	for _, node := range s.nodes() {
		t.Attach(node, resource.Metadata{}) // its resources are generated once, for all comparisons
	}
	return t
}

// versions returns the versions of all desired resources, subscribed or not.
func versions(d resource.Desired) map[resource.Name]string {
	all := map[resource.Name]string{}
	for _, t := range resource.Types() {
		for _, r := range d.Of(t) {
			all[r.Key()] = r.Version
		}
	}
	return all
}

// compare reports differences between a client's resources and the expected ones.
func (s *simulation) compare(c *client, with string, want resource.Desired) {
	if !c.connected() {
		s.Wrong("%s has no stream", c.name)
		return
	}
	has := map[resource.Name]string{}
	for n, r := range c.envoy.All() {
		has[n] = r.Version
		if n.Type == resource.Listener && c.envoy.Active(n.Name) != r {
			s.Wrong("%s has listener %s not in use", c.name, n.Name)
		}
	}
	if diff := cmp.Diff(s.needed(want), has); diff != "" {
		s.Wrong("%s (-%s +client):\n%s", c.name, with, diff)
	}
	if n := c.envoy.Warming(); n > 0 || c.envoy.Withholds() {
		s.Wrong("%s still warms %d clusters, or withholds an answer", c.name, n)
	}
}

// needed returns the versions of all resources that a client finally has: clusters and listeners, and the endpoints
// and routes that these name.
func (s *simulation) needed(d resource.Desired) map[resource.Name]string {
	all := map[resource.Name]string{}
	add := func(n resource.Name) *envoysim.Resource {
		r := d.Get(n)
		if r == nil {
			s.Wrong("%s %q is asked for, and does not exist", n.Type.Short(), n.Name)
			return &envoysim.Resource{}
		}
		read, err := s.decoder.Decode(r.Body, r.Name, r.Version)
		if err != nil {
			s.Wrong("%v", err)
			return &envoysim.Resource{}
		}
		all[n] = read.Version
		return read
	}
	for _, r := range d.Of(resource.Cluster) {
		if c := add(r.Key()); c.Endpoints != "" {
			add(resource.Name{Type: resource.Endpoint, Name: c.Endpoints})
		}
	}
	for _, r := range d.Of(resource.Listener) {
		for _, name := range add(r.Key()).Routes {
			add(resource.Name{Type: resource.Route, Name: name})
		}
	}
	return all
}

// forget checks that the stages keep nothing of disconnected proxies: an attached proxy would keep its resources even
// without its Dataplane.
func (s *simulation) forget() {
	s.Note("all disconnect")
	for _, c := range s.clients {
		if c.connected() {
			c.disconnect()
		}
	}
	settle(soon)
	s.plane.empty()
	for _, k := range s.keys() {
		if k.Kind == mesh.KindDataplane {
			s.put(k, nil)
		}
	}
	settle(soon)
	for _, node := range s.nodes() {
		if _, known := s.plane.Translator.Resources(node); known {
			s.Wrong("the Translator keeps %s, which has neither stream nor Dataplane", node)
		}
	}
}

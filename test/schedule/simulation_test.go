package schedule

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/test/anymesh"
	"github.com/sonde-mesh/sonde/test/seeded"
)

// simulation is one schedule: the expected content of the sources, a control plane, and clients.
type simulation struct {
	*seeded.Journal
	random  *rand.Rand
	meshes  []string
	decoder *envoysim.Decoder // of all streams: there are few different resources

	directory string
	objects   map[mesh.Key]mesh.Object
	texts     map[mesh.Object][]byte // in files
	parity    int                    // of the Dataplanes in files
	broken    map[string]bool        // files
	writes    int
	observed  map[mesh.ID]mesh.Observation

	plane    *plane // nil while it is stopped
	clients  []*client
	joined   int     // clients so far
	halfOpen []*pipe // streams of vanished clients
}

func newSimulation(j *seeded.Journal, seed uint64, directory string) *simulation {
	s := &simulation{
		Journal: j, random: rand.New(rand.NewPCG(seed, 11)), directory: directory,
		objects: map[mesh.Key]mesh.Object{}, texts: map[mesh.Object][]byte{}, broken: map[string]bool{}, observed: map[mesh.ID]mesh.Observation{},
		meshes: []string{mesh.DefaultMesh}, decoder: &envoysim.Decoder{},
	}
	s.parity = s.random.IntN(2)
	if s.random.IntN(4) == 0 {
		s.meshes = append(s.meshes, "prod")
	}
	return s
}

// play makes random operations, and then checks the final state.
func (s *simulation) play(ctx context.Context) {
	for _, name := range s.meshes {
		if s.random.IntN(2) == 0 {
			s.change(name)
		}
		for range proxies + services {
			s.change(name)
		}
	}
	s.start(ctx)
	for range 2 + s.random.IntN(3) {
		s.join()
	}
	// Most schedules are short: many short schedules find more than few long ones, and are easier to
	// read.
	for range 20 + int(180*math.Pow(s.random.Float64(), 14)) {
		s.operate(ctx)
		s.wait()
		s.reconnect()
		if s.Failed() {
			break
		}
	}
	if !s.Failed() {
		s.mend(ctx)
	}
	if !s.Failed() {
		s.rest()
	}
	s.end()
}

// start starts a new control plane from the current sources.
func (s *simulation) start(ctx context.Context) {
	s.Note("control plane starts")
	s.plane = startPlane(ctx, s)
	for _, k := range s.keys() {
		if s.fileOf(k) == "" {
			s.plane.Builder.Set(sourceDirect, s.objects[k])
		}
	}
	for id, o := range s.observed { // the order does not matter
		s.plane.Builder.Observe(id, o)
	}
	s.plane.Builder.Synced(sourceDirect)
}

func (s *simulation) kill() {
	s.Note("control plane is killed")
	s.plane.kill()
	s.plane, s.halfOpen = nil, nil
	for _, c := range s.clients {
		if c.pipe != nil {
			<-c.done
		}
	}
}

// wait lets time pass: often so little that the last operation takes effect only after the next one.
func (s *simulation) wait() {
	switch n := s.random.IntN(10); {
	case n < 4:
		time.Sleep(time.Duration(s.random.Int64N(int64(time.Millisecond))))
	case n < 8:
		time.Sleep(time.Duration(s.random.Int64N(int64(3 * time.Second))))
	default:
		time.Sleep(time.Duration(s.random.Int64N(int64(25 * time.Second))))
	}
}

// reconnect opens streams for some of the disconnected clients.
func (s *simulation) reconnect() {
	if s.plane == nil {
		return
	}
	for _, c := range s.clients {
		if !c.connected() && s.random.IntN(2) == 0 {
			c.connect(s.random.IntN(4) > 0)
		}
	}
}

func (s *simulation) anyMesh() string { return anymesh.Pick(s.random, s.meshes...) }

// join adds a client of some proxy, which may not have a Dataplane yet. A proxy has at most two clients: with more
// streams, the server ends the oldest.
func (s *simulation) join() {
	node := mesh.MakeID(s.anyMesh(), s.anyProxy())
	others := 0
	for _, c := range s.clients {
		if c.node() == node {
			others++
		}
	}
	if others < 2 {
		s.add(node, anymesh.Pick(s.random, envoysim.Protocols()...))
	}
}

func (s *simulation) add(node string, p envoysim.Protocol) *client {
	s.joined++
	c := &client{
		s: s, name: fmt.Sprintf("%s#%d(%s)", node, s.joined, p),
		options: envoysim.Options{Node: node, Protocol: p, Star: s.random.IntN(2) == 0, DrainTime: drainTime},
		pace:    anymesh.Pick(s.random, paces...),
		random:  rand.New(rand.NewPCG(s.random.Uint64(), 13)),
	}
	c.slowReader.Store(true)
	if s.random.IntN(3) == 0 {
		c.refuseOthers(s.random)
	}
	s.clients = append(s.clients, c)
	s.Note("%s joins, refuses %d of 1000", c.name, c.refusalRate.Load())
	return c
}

// refuseOthers makes the client refuse other resources than before.
func (c *client) refuseOthers(r *rand.Rand) {
	c.refusalRate.Store(int64(anymesh.Pick(r, 20, 200)))
	c.refusalSeed.Store(r.Uint64())
}

// end ends everything. synctest reports goroutines that have not ended.
func (s *simulation) end() {
	for _, c := range s.clients {
		if c.connected() {
			c.disconnect()
		}
	}
	if s.plane != nil {
		s.kill()
	}
}

// anyClient returns a client with a stream, or nil.
func (s *simulation) anyClient() *client {
	list := slices.DeleteFunc(slices.Clone(s.clients), func(c *client) bool { return !c.connected() })
	if len(list) == 0 {
		return nil
	}
	return anymesh.Pick(s.random, list...)
}

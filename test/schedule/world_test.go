package schedule

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// world is one schedule: what the sources should contain, a control plane, and clients.
type world struct {
	t      *testing.T
	random *rand.Rand
	begun  time.Time
	meshes []string
	books  *library

	directory string
	objects   map[mesh.Key]mesh.Object
	texts     map[mesh.Object][]byte // in files
	parity    int                    // of the Dataplanes that are in files
	broken    map[string]bool        // files
	writes    int
	observed  map[mesh.ID]mesh.Observation

	plane    *plane // nil while it is down
	clients  []*client
	joined   int     // clients so far
	halfOpen []*pipe // streams of clients that have left them

	mu      sync.Mutex
	verbose bool
	journal []string
	failed  bool
}

func newWorld(t *testing.T, seed uint64, directory string, verbose bool) *world {
	w := &world{
		t: t, random: rand.New(rand.NewPCG(seed, 11)), begun: time.Now(), directory: directory, verbose: verbose,
		objects: map[mesh.Key]mesh.Object{}, texts: map[mesh.Object][]byte{}, broken: map[string]bool{}, observed: map[mesh.ID]mesh.Observation{},
		meshes: []string{mesh.DefaultMesh},
	}
	w.books = newLibrary(w.wrong)
	w.parity = w.random.IntN(2)
	if w.random.IntN(4) == 0 {
		w.meshes = append(w.meshes, "prod")
	}
	return w
}

// note writes into the journal, which is shown if the schedule fails. detail only does so if a single schedule is played.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.journal = append(w.journal, fmt.Sprintf("%10.3fs ", time.Since(w.begun).Seconds())+fmt.Sprintf(format, args...))
}

func (w *world) detail(format string, args ...any) {
	if w.verbose {
		w.note("    "+format, args...)
	}
}

// wrong makes the schedule fail.
func (w *world) wrong(format string, args ...any) {
	w.note("WRONG: "+format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = true
	w.t.Errorf(format, args...)
}

func (w *world) hasFailed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed
}

func (w *world) history() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.journal, "\n")
}

// play makes random operations, and then checks that everything comes to rest.
func (w *world) play(ctx context.Context) {
	for _, name := range w.meshes {
		if w.random.IntN(2) == 0 {
			w.change(name)
		}
		for range proxies + services {
			w.change(name)
		}
	}
	w.start(ctx)
	for range 2 + w.random.IntN(3) {
		w.join()
	}
	// Most schedules are short: many short ones find more than few long ones, and are easier to read.
	for range 20 + int(180*math.Pow(w.random.Float64(), 14)) {
		w.operate(ctx)
		w.wait()
		w.reconnect()
		if w.hasFailed() {
			break
		}
	}
	if !w.hasFailed() {
		w.mend(ctx)
	}
	if !w.hasFailed() {
		w.rest()
	}
	w.end()
}

// start starts a new control plane from what the sources contain.
func (w *world) start(ctx context.Context) {
	w.note("control plane starts")
	w.plane = startPlane(ctx, w)
	for _, k := range w.keys() {
		if w.fileOf(k) == "" {
			w.plane.Builder.Set(sourceDirect, w.objects[k])
		}
	}
	for id, o := range w.observed { // the order does not matter
		w.plane.Builder.Observe(id, o)
	}
	w.plane.Builder.Synced(sourceDirect)
}

func (w *world) kill() {
	w.note("control plane is killed")
	w.plane.kill()
	w.plane, w.halfOpen = nil, nil
	for _, c := range w.clients {
		if c.pipe != nil {
			<-c.done
		}
	}
}

// wait lets time pass. Often it is so short that the last operation has not taken effect before the next one.
func (w *world) wait() {
	switch n := w.random.IntN(10); {
	case n < 4:
		time.Sleep(time.Duration(w.random.Int64N(int64(time.Millisecond))))
	case n < 8:
		time.Sleep(time.Duration(w.random.Int64N(int64(3 * time.Second))))
	default:
		time.Sleep(time.Duration(w.random.Int64N(int64(25 * time.Second))))
	}
}

// reconnect opens streams for some of the clients that have none.
func (w *world) reconnect() {
	if w.plane == nil {
		return
	}
	for _, c := range w.clients {
		if !c.connected() && w.random.IntN(2) == 0 {
			c.connect(w.random.IntN(4) > 0)
		}
	}
}

func (w *world) anyMesh() string { return pick(w.random, w.meshes...) }

// join adds a client of some proxy, which may not have a Dataplane yet. A proxy has at most two clients: with too many streams
// the server ends the oldest.
func (w *world) join() {
	node := mesh.MakeID(w.anyMesh(), proxyName(w.random))
	others := 0
	for _, c := range w.clients {
		if c.node == node {
			others++
		}
	}
	if others < 2 {
		w.add(node, w.random.IntN(2) == 0)
	}
}

func (w *world) add(node string, sotw bool) *client {
	w.joined++
	protocol := "delta"
	if sotw {
		protocol = "sotw"
	}
	c := &client{
		w: w, name: fmt.Sprintf("%s#%d(%s)", node, w.joined, protocol), node: node, sotw: sotw, star: w.random.IntN(2) == 0,
		pace:   pick(w.random, paces...),
		random: rand.New(rand.NewPCG(w.random.Uint64(), 13)), envoy: newEnvoy(),
	}
	c.slowReader.Store(true)
	if w.random.IntN(3) == 0 {
		c.refuseOthers(w.random)
	}
	w.clients = append(w.clients, c)
	w.note("%s joins, refuses %d of 1000", c.name, c.refusalRate.Load())
	return c
}

// refuseOthers makes the client refuse other resources than before.
func (c *client) refuseOthers(r *rand.Rand) {
	c.refusalRate.Store(int64(pick(r, 20, 200)))
	c.refusalSeed.Store(r.Uint64())
}

// end ends everything. synctest reports goroutines that are left.
func (w *world) end() {
	for _, c := range w.clients {
		if c.connected() {
			c.disconnect()
		}
	}
	if w.plane != nil {
		w.kill()
	}
}

// anyClient returns a client with a stream, nil if none has.
func (w *world) anyClient() *client {
	list := slices.DeleteFunc(slices.Clone(w.clients), func(c *client) bool { return !c.connected() })
	if len(list) == 0 {
		return nil
	}
	return pick(w.random, list...)
}

package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/health/heartbeat"
)

const (
	// settle is how long a file must be unchanged before it is read: an editor may write it in several steps.
	settle        = 100 * time.Millisecond
	defaultRescan = 10 * time.Second
)

// Builder receives the objects, under the name of the Dir's source. Its methods return at once.
type Builder interface {
	Set(source string, o mesh.Object)
	Delete(source string, k mesh.Key)
	Synced(source string)
}

// DirOptions of a Dir.
type DirOptions struct {
	// Path of the directory. Required.
	Path string
	// Builder receives the objects of the directory, and each change. Required.
	Builder Builder
	// Source is the name of the directory for the Builder. Required.
	Source string
	// ProbesMode of Dataplanes that do not set it. Default unified.
	ProbesMode mesh.ProbesMode
	// Logger logs each problem once. Default: no logging.
	Logger *slog.Logger
	// Registerer of the metric sonde_store_problems. Default: no metric.
	Registerer prometheus.Registerer
	// LastGood stores the content in use for the next process, in case a file is invalid by then. Default: nothing is
	// stored.
	LastGood *Records
	// Recorded returns the meshes that exist without their Mesh, see identity.Authority.Recorded. Default: none.
	Recorded func() map[string]*mesh.Mesh
	// Loop watches Run. Default: none.
	Loop *heartbeat.Loop
	// Rescan is the longest time between two scans. Scans find changes without an event: behind a link to another
	// directory, or on a network file system. Default 10s.
	Rescan time.Duration
	// Watcher reports changes of files. After an error the directory is polled. Default: fsnotify.NewWatcher.
	Watcher func() (*fsnotify.Watcher, error)
}

// Dir passes the objects in a directory of files to a Builder, and keeps them up to date there. While a file has an
// error, its last good content is used.
type Dir struct {
	o         DirOptions
	watch     func() *watch
	directory *directory
	applied   claims
	synced    bool
	metric    *prometheus.GaugeVec

	mu       sync.Mutex
	problems []Problem // of the last scan
	missing  error     // why the directory was never read, nil once it was
	lost     time.Time // since when it cannot be listed, zero while it can
	lostErr  error     // why it cannot be listed
	empty    bool      // it has no object files
}

// NewDir returns a Dir. Nothing is read before Run.
func NewDir(o DirOptions) *Dir {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Rescan = cmp.Or(o.Rescan, defaultRescan)
	if o.Watcher == nil {
		o.Watcher = fsnotify.NewWatcher
	}
	return &Dir{
		o: o, watch: func() *watch { return newWatch(o.Path, o.Watcher) }, applied: claims{},
		missing: errors.New("the store has not been read yet"),
		metric: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sonde_store_problems",
			Help: "Problems in the objects of the store now, by severity: error or warning. On Kubernetes these are invalid Meshes and Dataplanes. Services that only outbounds name are not counted.",
		}, []string{"severity"}),
	}
}

// Missing returns why the directory was never read, nil once it was.
func (d *Dir) Missing() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.missing
}

// Lost returns since when the directory cannot be listed, and why; zero while it can be listed. Meanwhile its objects
// stay.
func (d *Dir) Lost() (time.Time, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lost, d.lostErr
}

// Empty reports whether the directory has no object files, as an unmounted volume does.
func (d *Dir) Empty() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.empty
}

// Problems returns the current problems of the files, sorted by place. It may be called from any goroutine.
func (d *Dir) Problems() []Problem {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.problems)
}

// Run follows the directory until ctx ends, and then returns nil. A directory that is missing at the start is an error.
// If the directory disappears later, that is a Problem, and its objects stay.
func (d *Dir) Run(ctx context.Context) error {
	if info, err := os.Stat(d.o.Path); err != nil {
		return fmt.Errorf("open store: %w", err)
	} else if !info.IsDir() {
		return fmt.Errorf("open store: %s is not a directory", d.o.Path)
	}
	if d.o.Registerer != nil {
		if err := d.o.Registerer.Register(d.metric); err != nil {
			return fmt.Errorf("register metric of store: %w", err)
		}
		defer d.o.Registerer.Unregister(d.metric)
	}
	w := d.watch()
	defer w.close()
	if w.err != nil {
		d.o.Logger.Warn("failed to watch the store, polling it", "interval", d.o.Rescan, "err", w.err)
	}
	d.directory = newDirectory(d.o.Path, settle)
	d.directory.mode = d.o.ProbesMode
	if d.o.LastGood != nil {
		d.directory.lastGood = &lastGood{d.o.LastGood, d.o.Logger}
	}
	due := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-w.events:
			if !ok { // the system ended the watch, but rescans continue
				w.events = nil
				continue
			}
			// Events come in bursts: one scan serves a whole burst.
			if soon := time.Now().Add(settle / 10); soon.Before(due) {
				due = soon
				timer.Reset(time.Until(due))
			}
		case err, ok := <-w.errors:
			if !ok {
				w.errors = nil
				continue
			}
			d.o.Logger.Warn("lost file events of the store, rescanning", "err", err)
		case <-timer.C:
			d.o.Loop.Begin()
			w.renew()
			due = d.poll(time.Now())
			d.o.Loop.End()
			timer.Reset(time.Until(due))
		}
	}
}

// poll scans the directory once, passes changes on, and returns when it must scan again.
func (d *Dir) poll(now time.Time) time.Time {
	if d.o.Recorded != nil {
		d.directory.recorded = d.o.Recorded()
	}
	again, next := d.directory.scan(now)
	d.mu.Lock()
	d.empty = len(d.directory.files) == 0
	d.mu.Unlock()
	if again {
		changes := d.apply(d.directory.resolve(d.applied))
		if d.synced { // objects present at the start are counted below
			logChanges(d.o.Logger, changes)
		}
	}
	d.report(d.directory.problems())
	d.note(now)
	if !d.synced && d.directory.complete() {
		d.synced = true
		d.directory.lastGood.retain(d.directory.files)
		d.o.Logger.Info("store read", "directory", d.o.Path, "files", len(d.directory.files), "objects", len(d.applied))
		d.o.Builder.Synced(d.o.Source)
	}
	if rescan := now.Add(d.o.Rescan); next.IsZero() || rescan.Before(next) {
		return rescan
	}
	return next
}

// note records what a scan has found about the directory itself.
func (d *Dir) note(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch d.lostErr = d.directory.listErr; {
	case d.lostErr == nil:
		d.lost = time.Time{}
	case d.lost.IsZero():
		d.lost = now
	}
	switch {
	case d.directory.complete():
		d.missing = nil
	case d.missing != nil && d.lostErr != nil:
		d.missing = fmt.Errorf("the store has not been read yet: %w", d.lostErr)
	}
}

// apply passes the differences to the Builder, and returns them: a Mesh before the objects that belong to it, removals
// last.
func (d *Dir) apply(wanted claims) (changes []change) {
	for _, key := range wanted.keys() {
		before, now := d.applied[key].Object, wanted[key].Object
		if before != now && !reflect.DeepEqual(before, now) {
			d.o.Builder.Set(d.o.Source, now)
			what := changed
			if before == nil {
				what = added
			}
			changes = append(changes, change{key, what})
		}
	}
	for _, key := range slices.Backward(d.applied.keys()) {
		if _, stays := wanted[key]; !stays {
			d.o.Builder.Delete(d.o.Source, key)
			changes = append(changes, change{key, removed})
		}
	}
	d.applied = wanted
	return changes
}

// report publishes the problems. It logs each problem once, and the end of a file's errors.
func (d *Dir) report(now []Problem) {
	d.mu.Lock()
	before := d.problems
	for i := range now {
		now[i].Since = time.Now()
		if j := slices.IndexFunc(before, now[i].same); j >= 0 {
			now[i].Since = before[j].Since
		}
	}
	d.problems = now
	d.mu.Unlock()
	counts := map[Severity]int{Warning: 0, Error: 0}
	for _, p := range now {
		counts[p.Severity]++
		if slices.ContainsFunc(before, p.same) {
			continue
		}
		log := d.o.Logger.Warn
		if p.Severity == Error {
			log = d.o.Logger.Error
		}
		log("object file has a problem", append(p.attributes(), "err", p.Err)...)
	}
	for severity, n := range counts {
		d.metric.WithLabelValues(severity.String()).Set(float64(n))
	}
	for _, file := range filesWithErrors(before) {
		if !slices.Contains(filesWithErrors(now), file) {
			d.o.Logger.Info("object file is valid again", "file", file)
		}
	}
}

func (p Problem) same(q Problem) bool {
	return p.Place == q.Place && p.Severity == q.Severity && p.Err.Error() == q.Err.Error()
}

// filesWithErrors returns the files that have an Error.
func filesWithErrors(problems []Problem) []string {
	var files []string
	for _, p := range problems {
		if p.Severity == Error && !slices.Contains(files, p.File) {
			files = append(files, p.File)
		}
	}
	return files
}

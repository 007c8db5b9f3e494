package store

import (
	"bytes"
	"cmp"
	"errors"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// maxSettles limits how many times settle a file may keep changing. After that it counts as busy: that is a problem,
// and other files no longer wait for it.
const maxSettles = 20

// directory is the content of the files of a directory, as in use and as last read. It only reads files: the time is a
// parameter.
type directory struct {
	path      string
	mode      mesh.ProbesMode // default for Dataplanes
	settle    time.Duration
	lastGood  *lastGood             // nil keeps nothing
	recorded  map[string]*mesh.Mesh // meshes that exist without their Mesh
	files     map[string]*file
	listErr   error     // why the directory cannot be listed
	skipped   []Problem // problems of skipped files
	conflicts []Problem // problems between files
}

// file is one file of a directory.
type file struct {
	name     string
	mode     mesh.ProbesMode // of the directory
	lastGood *lastGood       // of the directory
	// info is the file as last seen, nil if it no longer exists, and stableSince when it was first seen like that.
	// unread is when the first unread change was seen, zero for none.
	info                os.FileInfo
	stableSince, unread time.Time
	unreadable          bool // the last read failed, and is retried
	busy                bool // keeps changing

	// entries is the content in use. whole means that this is the whole content of a file. Before a file has been valid
	// once, only its good documents are used.
	entries []entry
	whole   bool
	// pending is new valid content that is not in use yet, nil for none, and text its source.
	pending  *[]entry
	text     []byte
	problems []Problem
}

func newDirectory(path string, settle time.Duration) *directory {
	return &directory{path: path, settle: settle, files: map[string]*file{}}
}

// scan looks for changes and reads the files that have settled. It returns whether any content changed, and when to
// scan again, zero if only after another change.
func (f *directory) scan(now time.Time) (changed bool, next time.Time) {
	listed, skipped, err := listDirectory(f.path)
	f.listErr = err
	if err != nil {
		return false, time.Time{}
	}
	f.skipped = skipped
	gone := maps.Clone(f.files)
	for name, info := range listed {
		delete(gone, name)
		if f.files[name] == nil {
			f.files[name] = &file{name: name, mode: f.mode, lastGood: f.lastGood}
		}
		f.files[name].update(info, now)
	}
	for _, file := range gone {
		file.update(nil, now)
	}
	waiting := false
	for _, file := range f.files {
		file.busy = !file.unread.IsZero() && now.Sub(file.unread) >= maxSettles*f.settle
		if file.info != nil && f.hasSettled(file, now) && file.read() {
			changed = true
		}
		waiting = waiting || file.info != nil && !file.unread.IsZero() && !file.busy
	}
	return f.remove(now, waiting) || changed, f.nextScan(now)
}

func (f *directory) hasSettled(file *file, now time.Time) bool {
	return !file.unread.IsZero() && now.Sub(file.stableSince) >= f.settle
}

// remove drops deleted files. It waits while other files are still unread, so that an object that moves from one file
// to another is never missing.
func (f *directory) remove(now time.Time, waiting bool) bool {
	removed := false
	for name, file := range f.files {
		if file.info == nil && f.hasSettled(file, now) && !waiting {
			delete(f.files, name)
			f.lastGood.forget(name)
			removed = true
		}
	}
	return removed
}

// nextScan returns when the next file will have settled, zero if none is unread.
func (f *directory) nextScan(now time.Time) time.Time {
	var next time.Time
	for _, file := range f.files {
		if due := file.stableSince.Add(f.settle); !file.unread.IsZero() && (next.IsZero() || due.Before(next)) {
			next = due
		}
	}
	if soon := now.Add(f.settle / 10); !next.IsZero() && next.Before(soon) {
		return soon // to remove the deleted files, or to read again a file that changed while it was read
	}
	return next
}

// complete reports whether every file has been read, except those that keep changing.
func (f *directory) complete() bool {
	for _, file := range f.files {
		if !file.unread.IsZero() && !file.busy {
			return false
		}
	}
	return f.listErr == nil
}

// problems returns the current problems, sorted by place.
func (f *directory) problems() []Problem {
	all := slices.Concat(f.conflicts, f.skipped)
	if f.listErr != nil {
		all = append(all, Problem{Place: Place{File: f.path}, Severity: Error, Err: f.listErr})
	}
	if f.complete() {
		if f.isEmpty() {
			all = append(all, Problem{Place: Place{File: f.path}, Severity: Warning, Err: errNoObject})
		}
		all = append(all, f.lost()...)
	}
	for _, file := range f.files {
		all = append(all, file.problems...)
		if file.busy && file.info != nil {
			all = append(all, file.problem(Error, errors.New("keeps changing, and is read once it stops")))
		}
	}
	slices.SortStableFunc(all, func(a, b Problem) int { return comparePlace(a.Place, b.Place) })
	return all
}

// lost returns a problem for each recorded mesh without a Mesh in the files.
func (f *directory) lost() (problems []Problem) {
	recorded := maps.Clone(f.recorded)
	for _, file := range f.files {
		for _, e := range file.entries {
			if key := e.Object.Key(); key.Kind == mesh.KindMesh {
				delete(recorded, key.Name)
			}
		}
	}
	for _, m := range recorded {
		problems = append(problems, Problem{Place: Place{File: f.path}, Severity: Error, Err: m.LostError(), Object: m.Key()})
	}
	return problems
}

// isEmpty reports whether the files have no usable object, and no error that would explain this.
func (f *directory) isEmpty() bool {
	for _, file := range f.files {
		if len(file.entries) > 0 || file.pending != nil || slices.ContainsFunc(file.problems, isError) {
			return false
		}
	}
	return true
}

// update records the file's current state.
func (f *file) update(info os.FileInfo, now time.Time) {
	if !same(f.info, info) {
		f.info, f.stableSince = info, now
		f.unread = cmp.Or(f.unread, now)
	}
	if f.unreadable && f.unread.IsZero() {
		f.stableSince, f.unread = now, now
	}
}

func same(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

func (f *file) problem(severity Severity, err error) Problem {
	return Problem{Place: Place{File: f.name}, Severity: severity, Err: err}
}

// read reads the file, and returns false if it changed meanwhile.
func (f *file) read() bool {
	data, err := readEntry(f.name)
	if info, statErr := stat(f.name); statErr != nil || !same(info, f.info) {
		return false // the next scan sees the new state
	}
	f.unread, f.pending, f.busy = time.Time{}, nil, false
	f.unreadable = err != nil
	empty := len(bytes.TrimSpace(data)) == 0
	switch {
	case err != nil:
		f.problems = []Problem{f.problem(Error, err)}
	case empty && len(f.entries) > 0:
		f.problems = []Problem{f.problem(Error,
			errors.New("is empty: its objects stay until it has content again, or is removed"))}
	case empty:
		f.problems = []Problem{f.problem(Warning, errors.New("is empty"))}
	default:
		f.decode(data)
	}
	if f.pending == nil && !f.whole {
		f.restore()
	}
	return true
}

// restore takes over the content that an earlier process used, since the current content is invalid.
func (f *file) restore() {
	text := f.lastGood.of(f.name)
	if len(text) == 0 {
		return
	}
	entries, found, _ := decodeFile(f.name, text, f.mode)
	if len(entries) == 0 || slices.ContainsFunc(found, isError) { // it may have moved to an earlier file
		return
	}
	f.pending, f.text = &entries, text
	f.problems = append(f.problems,
		f.problem(Warning, errors.New("is invalid, and was already invalid at the start: its last good content is used")))
}

func (f *file) decode(data []byte) {
	entries, found, _ := decodeFile(f.name, data, f.mode)
	f.problems = found
	switch {
	case !slices.ContainsFunc(found, isError):
		f.pending, f.text = &entries, data
	case !f.whole:
		f.entries = entries
	}
}

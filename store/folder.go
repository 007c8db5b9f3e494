package store

import (
	"bytes"
	"cmp"
	"errors"
	"maps"
	"os"
	"slices"
	"time"
)

// patience is how many times its time to settle a file may go on changing before that is a problem, and before others
// wait for it no longer.
const patience = 20

// folder is what the files of a folder say, and have said. It does no more than read them: time is a parameter.
type folder struct {
	path     string
	settle   time.Duration
	files    map[string]*file
	unlisted error // why the folder cannot be listed
	clashes  []Problem
}

// file is one file of a folder.
type file struct {
	name string
	// info is the file as last seen, nil if it is gone; since is when it was first seen so. unread is when a change was
	// seen that has not been read, zero if there is none.
	info          os.FileInfo
	since, unread time.Time
	unreadable    bool // and tried again
	busy          bool // keeps changing

	// entries are the content in use. whole says that it was a whole file: until one was read, the good documents of a
	// broken file are better than none.
	entries []entry
	whole   bool
	// next is a new content, good in itself, that is used once it goes with the other files. nil if there is none.
	next  *[]entry
	found []Problem
}

func newFolder(path string, settle time.Duration) *folder {
	return &folder{path: path, settle: settle, files: map[string]*file{}}
}

// look sees what has changed and reads what has settled. It says whether anything was read, and when to look again, zero
// if only after another change.
func (f *folder) look(now time.Time) (changed bool, next time.Time) {
	listed, err := listFolder(f.path)
	f.unlisted = err
	if err != nil {
		return false, time.Time{}
	}
	gone := maps.Clone(f.files)
	for name, info := range listed {
		delete(gone, name)
		if f.files[name] == nil {
			f.files[name] = &file{name: name}
		}
		f.files[name].see(info, now)
	}
	for _, file := range gone {
		file.see(nil, now)
	}
	waiting := false
	for _, file := range f.files {
		file.busy = !file.unread.IsZero() && now.Sub(file.unread) >= patience*f.settle
		if file.info != nil && f.hasSettled(file, now) && file.read() {
			changed = true
		}
		waiting = waiting || file.info != nil && !file.unread.IsZero() && !file.busy
	}
	return f.remove(now, waiting) || changed, f.next(now)
}

func (f *folder) hasSettled(file *file, now time.Time) bool {
	return !file.unread.IsZero() && now.Sub(file.since) >= f.settle
}

// remove forgets the files that are gone. It waits while others have yet to be read: an object that moves from one to the
// other must not be away in between.
func (f *folder) remove(now time.Time, waiting bool) bool {
	removed := false
	for name, file := range f.files {
		if file.info == nil && f.hasSettled(file, now) && !waiting {
			delete(f.files, name)
			removed = true
		}
	}
	return removed
}

// next is when a file will have settled.
func (f *folder) next(now time.Time) time.Time {
	var next time.Time
	for _, file := range f.files {
		if due := file.since.Add(f.settle); !file.unread.IsZero() && (next.IsZero() || due.Before(next)) {
			next = due
		}
	}
	if soon := now.Add(f.settle / 10); !next.IsZero() && next.Before(soon) {
		return soon // a removal that waits, or a file that changed while it was read
	}
	return next
}

// complete says whether every file has been read, but for those that keep changing.
func (f *folder) complete() bool {
	for _, file := range f.files {
		if !file.unread.IsZero() && !file.busy {
			return false
		}
	}
	return f.unlisted == nil
}

// problems lists what is wrong now.
func (f *folder) problems() []Problem {
	all := slices.Clone(f.clashes)
	if f.unlisted != nil {
		all = append(all, Problem{Place: Place{File: f.path}, Severity: Error, Err: f.unlisted})
	}
	for _, file := range f.files {
		all = append(all, file.found...)
		if file.busy && file.info != nil {
			all = append(all, file.problem(Error, errors.New("keeps changing, and is read once it does not")))
		}
	}
	slices.SortStableFunc(all, func(a, b Problem) int { return comparePlace(a.Place, b.Place) })
	return all
}

// see notes how the file is now.
func (f *file) see(info os.FileInfo, now time.Time) {
	if !same(f.info, info) {
		f.info, f.since = info, now
		f.unread = cmp.Or(f.unread, now)
	}
	if f.unreadable && f.unread.IsZero() {
		f.since, f.unread = now, now
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

// read reads the file, unless it changes meanwhile.
func (f *file) read() bool {
	data, err := readFile(f.name)
	if info, statErr := os.Stat(f.name); statErr != nil || !same(info, f.info) {
		return false // the next look sees what it has become
	}
	f.unread, f.next, f.busy = time.Time{}, nil, false
	f.unreadable = err != nil
	empty := len(bytes.TrimSpace(data)) == 0
	switch {
	case err != nil:
		f.found = []Problem{f.problem(Error, err)}
	case empty && len(f.entries) > 0:
		f.found = []Problem{f.problem(Error, errors.New("is empty: its objects stay until it has content again, or is removed"))}
	case empty:
		f.found = []Problem{f.problem(Warning, errors.New("is empty"))}
	default:
		f.decode(data)
	}
	return true
}

func (f *file) decode(data []byte) {
	entries, found := decodeFile(f.name, data)
	f.found = found
	switch {
	case !slices.ContainsFunc(found, func(p Problem) bool { return p.Severity == Error }):
		f.next = &entries
	case !f.whole:
		f.entries = entries
	}
}

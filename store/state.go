package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/internal/disk"
	"github.com/sonde-mesh/sonde/internal/filelock"
)

// lockFile in the state directory is locked while a control plane uses the directory.
const lockFile = ".lock"

// State is the directory in which the control plane keeps its keys and certificates. Only its owner can read it. Names
// are slash-separated paths within it; no part of one begins with a dot. It may be used from any goroutine.
type State struct {
	path string // absolute
	root *os.Root
	// lock is the lock file, claimed the directory itself. Both are locked, since the lock file can be removed, and not
	// every file system can lock directories.
	lock, claimed *os.File
	disk          disk.Disk // single writer: each temporary file has a fixed name
	// written is when a file was last written.
	written atomic.Pointer[time.Time]
	// secrets is locked by Secrets while it compares and writes a file.
	secrets sync.Mutex
}

// OpenState opens the directory, and creates it with mode 0700 if it does not exist. A directory that others can read
// or write is an error, and its mode is not changed: it may be shared, such as /tmp, and others may have read its
// files. It is also an error if another control plane uses the directory: both would keep CAs and records in memory,
// and overwrite each other's files.
func OpenState(directory string) (*State, error) {
	directory, err := filepath.Abs(directory)
	if err != nil {
		return nil, fmt.Errorf("find state directory: %w", err)
	}
	if err := os.MkdirAll(directory, 0o700); err != nil {
		if target, link := os.Readlink(directory); link == nil {
			return nil, fmt.Errorf("make state directory: %s is a symbolic link to %s, which cannot be used: %w",
				directory, target, err)
		}
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	root, err := os.OpenRoot(directory)
	if err != nil {
		return nil, fmt.Errorf("open state directory: %w", err)
	}
	s := &State{path: directory, root: root, disk: disk.New()}
	if err = filelock.CheckPrivate(directory, lockFile); err == nil {
		err = s.checkOwn()
	}
	if err != nil {
		err = fmt.Errorf("state directory %s: %w", directory, err)
	}
	if err == nil {
		err = s.claim()
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// stateFiles identify a state directory: it has at least one of them, even if restored from a backup without its lock.
var stateFiles = []string{lockFile, "serving-ca.json", "serving-ca.crt", "serving-ca.key", "admin-token",
	"dataplane-token.key", "meshes"}

// ownOfVolumes are entries that may be in an otherwise empty directory: file systems and NAS create them, and Git's
// placeholder is another.
var ownOfVolumes = []string{"lost+found", ".snapshot", ".snapshots", ".trashcan", "@eaDir", ".gitkeep"}

// checkOwn rejects a directory with other files, such as a user's home.
func (s *State) checkOwn() error {
	items, err := fs.ReadDir(s.root.FS(), ".")
	if err != nil {
		return fmt.Errorf("list it: %w", err)
	}
	other := ""
	for _, item := range items {
		switch name := item.Name(); {
		case slices.Contains(stateFiles, name):
			return nil
		case !slices.Contains(ownOfVolumes, name):
			other = name
		}
	}
	if other != "" {
		return fmt.Errorf("it has files, such as %q, and no state of sonde-cp: must be an empty directory, or one that does not exist yet, such as %s", other, path.Join(s.path, "sonde"))
	}
	return nil
}

// claim locks the directory for this process.
func (s *State) claim() (err error) {
	s.lock, err = s.root.OpenFile(lockFile, os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, unix.EROFS) { // a control plane can still serve from a read-only directory
		s.lock, err = s.root.Open(lockFile)
	}
	if err == nil {
		err = filelock.Lock(s.lock)
	}
	if err == nil {
		s.claimed, err = s.root.Open(".")
	}
	if err == nil {
		err = filelock.LockDirectory(s.claimed)
	}
	switch {
	case errors.Is(err, filelock.ErrHeld):
		return fmt.Errorf("state directory %s: another sonde-cp uses it: each needs a directory of its own", s.path)
	case err != nil:
		return fmt.Errorf("claim state directory %s: %w", s.path, err)
	}
	return nil
}

// Close closes the directory, which another control plane may then open. It may be called again.
func (s *State) Close() error {
	err := s.root.Close()
	for _, locked := range []*os.File{s.lock, s.claimed} {
		if locked == nil {
			continue
		}
		if unlock := locked.Close(); !errors.Is(unlock, fs.ErrClosed) {
			err = errors.Join(err, unlock)
		}
	}
	if err != nil {
		return fmt.Errorf("close state directory: %w", err)
	}
	return nil
}

// Check returns why the directory can no longer be used, nil if it can. It writes nothing, see Records.Check.
func (s *State) Check() error {
	there, err := os.Stat(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("state directory %s was removed: put it back, or restart sonde-cp with a new one", s.path)
	}
	if err != nil {
		return fmt.Errorf("look at state directory: %w", err)
	}
	opened, err := s.root.Stat(".")
	if err != nil {
		return fmt.Errorf("look at open state directory %s: %w", s.path, err)
	}
	if !os.SameFile(there, opened) {
		return fmt.Errorf("state directory %s was replaced by another one: restart sonde-cp to use the new one", s.path)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, s.path, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("state directory %s cannot be written: %w", s.path, err)
	}
	return nil
}

// maxExposed is how many files Exposed names.
const maxExposed = 10

// Exposed returns the files, or "." for the directory, that other users can read, by mode or ownership. A backup or a
// copy may have such files. Their secrets may have been read there.
func (s *State) Exposed() ([]string, error) {
	var names []string
	err := fs.WalkDir(s.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() && name != "." {
			return err
		}
		info, err := d.Info()
		if err == nil && (info.Mode().Perm()&0o077 != 0 || foreign(info)) {
			if names = append(names, name); len(names) == maxExposed {
				return fs.SkipAll
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look at the modes of the state directory: %w", err)
	}
	return names, nil
}

func foreign(info fs.FileInfo) bool {
	of, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(of.Uid) != os.Geteuid()
}

// maxRead limits a file: copies of the store's files are the largest, with 8 MiB.
const maxRead = 16 << 20

// read reads a regular file. Any other file may never end, or wait for a writer, and so block all access.
func (s *State) read(name string) ([]byte, error) {
	info, err := s.root.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("it is not a regular file (%s): remove it", info.Mode())
	}
	if info.Size() > maxRead {
		return nil, fmt.Errorf("it has %d bytes: must have at most %d", info.Size(), maxRead)
	}
	file, err := s.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(file, maxRead))
	return data, errors.Join(err, file.Close())
}

// Read returns the content of a file. The error wraps fs.ErrNotExist if it does not exist.
func (s *State) Read(name string) ([]byte, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	data, err := disk.Ask(s.disk, func() ([]byte, error) { return s.read(name) })
	if err != nil {
		return nil, fmt.Errorf("read state %s: %w", name, err)
	}
	return data, nil
}

// Write replaces a file atomically, with mode 0600. When Write returns, the file and its directory entry are on disk;
// after an error, the old content stays.
func (s *State) Write(name string, data []byte) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := s.disk.Do(func() error { return s.write(name, data) }); err != nil {
		return fmt.Errorf("write state %s: %w", name, err)
	}
	now := time.Now()
	s.written.Store(&now)
	return nil
}

// lastWrite returns when a file was last written, zero if none was.
func (s *State) lastWrite() time.Time {
	if at := s.written.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

func (s *State) write(name string, data []byte) error {
	directory, base := path.Split(name)
	directory = path.Clean(directory)
	temporary := path.Join(directory, "."+base+".tmp")
	err := s.root.MkdirAll(directory, 0o700)
	if err == nil {
		err = s.writeSynced(temporary, data)
	}
	if err == nil {
		err = s.root.Rename(temporary, name)
	}
	// Directories that were just created must be on disk, too.
	for ; err == nil; directory = path.Dir(directory) {
		if err = s.syncDirectory(directory); directory == "." {
			break
		}
	}
	return err
}

func (s *State) writeSynced(name string, data []byte) error {
	// A file that a crash has left may have any content.
	if err := s.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := s.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

func (s *State) syncDirectory(name string) error {
	directory, err := s.root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}

// Remove removes a file. A missing file is not an error.
func (s *State) Remove(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	err := s.disk.Do(func() error {
		err := s.root.Remove(name)
		if err == nil {
			err = s.syncDirectory(path.Dir(name))
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove state %s: %w", name, err)
	}
	return nil
}

// List returns the names of the files and directories in a directory, sorted; "." is the top. A directory that does not
// exist is empty.
func (s *State) List(directory string) ([]string, error) {
	if directory != "." {
		if err := checkName(directory); err != nil {
			return nil, err
		}
	}
	items, err := disk.Ask(s.disk, func() ([]fs.DirEntry, error) { return s.list(directory) })
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list state: %w", err)
	}
	var names []string
	for _, item := range items {
		if !strings.HasPrefix(item.Name(), ".") {
			names = append(names, item.Name())
		}
	}
	return names, nil
}

// list lists a directory. It opens nothing else, since that may wait for a writer.
func (s *State) list(name string) ([]fs.DirEntry, error) {
	info, err := s.root.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a directory (%s): remove it", name, info.Mode())
	}
	return fs.ReadDir(s.root.FS(), name)
}

func checkName(name string) error {
	if !fs.ValidPath(name) || strings.HasPrefix(name, ".") || strings.Contains(name, "/.") {
		return fmt.Errorf("name %q in the state directory: %w", name, fs.ErrInvalid)
	}
	return nil
}

package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/filelock"
)

// lockFile in the state folder is locked while a control plane uses the folder.
const lockFile = ".lock"

// State is the folder in which the control plane keeps its keys and certificates. Only its owner can read it. Names are
// slash-separated paths within it; no part of one begins with a dot. It may be used from any goroutine.
type State struct {
	path string // absolute
	root *os.Root
	lock *os.File
	mu   sync.Mutex // one writer: each temporary file has a fixed name
}

// OpenState opens the folder, and creates it with mode 0700 if it does not exist. A folder that others can read or write
// is an error and is not corrected: it may be a shared one such as /tmp, and its files may have been read already. It is also
// an error if another control plane uses the folder: both would keep CAs and records in memory, and overwrite each other's.
func OpenState(folder string) (*State, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return nil, fmt.Errorf("find state folder: %w", err)
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("make state folder: %w", err)
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, fmt.Errorf("open state folder: %w", err)
	}
	s := &State{path: folder, root: root}
	info, err := root.Stat(".")
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = fmt.Errorf("state folder %s has mode %04o: it must not be open to group or others, make it a folder of its own with mode 0700",
			folder, info.Mode().Perm())
	}
	if err == nil {
		err = s.claim()
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// claim locks the folder for this process.
func (s *State) claim() (err error) {
	if s.lock, err = s.root.OpenFile(lockFile, os.O_CREATE|os.O_RDWR, 0o600); err == nil {
		err = filelock.Lock(s.lock)
	}
	switch {
	case errors.Is(err, filelock.ErrHeld):
		return fmt.Errorf("state folder %s: another sonde-cp uses it: each needs a folder of its own", s.path)
	case err != nil:
		return fmt.Errorf("claim state folder %s: %w", s.path, err)
	}
	return nil
}

// Close closes the folder, which another control plane may open then. It may be called again.
func (s *State) Close() error {
	err := s.root.Close()
	if s.lock != nil {
		if unlock := s.lock.Close(); !errors.Is(unlock, fs.ErrClosed) {
			err = errors.Join(err, unlock)
		}
	}
	if err != nil {
		return fmt.Errorf("close state folder: %w", err)
	}
	return nil
}

// Check returns why nothing can be kept in the folder any more, nil if it can. It writes nothing.
func (s *State) Check() error {
	there, err := os.Stat(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("state folder %s was removed: put it back, or restart sonde-cp with a new one", s.path)
	}
	if err != nil {
		return fmt.Errorf("look at state folder: %w", err)
	}
	opened, err := s.root.Stat(".")
	if err != nil {
		return fmt.Errorf("look at open state folder %s: %w", s.path, err)
	}
	if !os.SameFile(there, opened) {
		return fmt.Errorf("state folder %s was replaced by another one: restart sonde-cp to use that", s.path)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, s.path, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("state folder %s cannot be written: %w", s.path, err)
	}
	return nil
}

// Read returns the content of a file. The error wraps fs.ErrNotExist if there is none.
func (s *State) Read(name string) ([]byte, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	data, err := s.root.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	return data, nil
}

// Write replaces a file atomically, with mode 0600. File and name are on disk when Write returns; on an error the old
// content stays.
func (s *State) Write(name string, data []byte) error {
	if err := checkName(name); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	folder, base := path.Split(name)
	folder = path.Clean(folder)
	temporary := path.Join(folder, "."+base+".tmp")
	err := s.root.MkdirAll(folder, 0o700)
	if err == nil {
		err = s.writeSynced(temporary, data)
	}
	if err == nil {
		err = s.root.Rename(temporary, name)
	}
	// Folders that were just created must be on disk, too.
	for ; err == nil; folder = path.Dir(folder) {
		if err = s.syncFolder(folder); folder == "." {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("write state %s: %w", name, err)
	}
	return nil
}

func (s *State) writeSynced(name string, data []byte) error {
	// A file that a crash left behind may have any content.
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

func (s *State) syncFolder(name string) error {
	folder, err := s.root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// Remove removes a file. It is no error if there is none.
func (s *State) Remove(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.root.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = s.syncFolder(path.Dir(name))
	}
	if err != nil {
		return fmt.Errorf("remove state %s: %w", name, err)
	}
	return nil
}

// List returns the names of the files and folders in a folder, sorted; "." is the top. A folder that does not exist is
// empty.
func (s *State) List(folder string) ([]string, error) {
	if folder != "." {
		if err := checkName(folder); err != nil {
			return nil, err
		}
	}
	items, err := fs.ReadDir(s.root.FS(), folder)
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

func checkName(name string) error {
	if !fs.ValidPath(name) || strings.HasPrefix(name, ".") || strings.Contains(name, "/.") {
		return fmt.Errorf("name %q in the state folder: %w", name, fs.ErrInvalid)
	}
	return nil
}

package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
)

// State is the folder in which the control plane keeps its keys and certificates. Only its owner can read it. Names are
// slash-separated paths within it; no part of one begins with a dot. It may be used from any goroutine.
type State struct {
	root *os.Root
	mu   sync.Mutex // one writer: each temporary file has a fixed name
}

// OpenState opens the folder, and creates it with mode 0700 if it does not exist. A folder that others can read or write
// is an error and is not corrected: it may be a shared one such as /tmp, and its files may have been read already.
func OpenState(folder string) (*State, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("make state folder: %w", err)
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, fmt.Errorf("open state folder: %w", err)
	}
	info, err := root.Stat(".")
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = fmt.Errorf("state folder %s has mode %04o: it must not be open to group or others, make it a folder of its own with mode 0700",
			folder, info.Mode().Perm())
	}
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return &State{root: root}, nil
}

// Close closes the folder.
func (s *State) Close() error {
	if err := s.root.Close(); err != nil {
		return fmt.Errorf("close state folder: %w", err)
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

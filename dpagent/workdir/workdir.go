// Package workdir manages the directory that the agent shares with its Envoy: bootstrap, secrets and Unix sockets.
package workdir

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/disk"
	"github.com/sonde-mesh/sonde/internal/filelock"
	"github.com/sonde-mesh/sonde/internal/replacefile"
)

// Names of files in the directory, besides the files of the sidecar's contract (api/mesh).
const (
	Bootstrap = "bootstrap.json"

	lock = "lock"
)

// Dir is an open work directory. Close it when Envoy has ended.
type Dir struct {
	// Path of the directory; it is absolute.
	Path string

	handle *os.File
	lock   *os.File
	remove bool
	disk   disk.Disk
}

// Open opens the directory at path, and creates it if it does not exist. If path is empty, it creates a new directory
// under $TMPDIR, which Close removes. It returns an error if other users may enter the directory, since it holds
// secrets, or if another agent uses it.
func Open(path string) (*Dir, error) {
	d := &Dir{Path: path, disk: disk.New()}
	if path == "" {
		removeStale(os.TempDir())
		made, err := os.MkdirTemp("", prefix)
		if err != nil {
			return nil, fmt.Errorf("make work directory: %w", err)
		}
		d.Path, d.remove = made, true
	}
	if err := d.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open work directory: %w", err), d.Close())
	}
	return d, nil
}

// Attach opens the directory of a running agent, for another program of the same user. It creates, changes and locks
// nothing.
func Attach(path string) (*Dir, error) {
	handle, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open work directory: %w", err)
	}
	return &Dir{Path: path, handle: handle, disk: disk.New()}, nil
}

const (
	// prefix begins the names of the directories that Open creates under $TMPDIR.
	prefix = "sonde-dp-"
	// staleAfter is longer than an agent takes between creating its directory and locking it.
	staleAfter = time.Minute
)

// removeStale removes directories in tmp whose agents were killed, since a guard may restart an agent many times.
func removeStale(tmp string) {
	locks, _ := filepath.Glob(filepath.Join(tmp, prefix+"*", lock)) // the pattern is valid
	for _, path := range locks {
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue // not a directory of an agent of this user
		}
		info, err := f.Stat()
		if err == nil && time.Since(info.ModTime()) > staleAfter && filelock.Lock(f) == nil {
			_ = os.RemoveAll(filepath.Dir(path)) // the next agent retries
		}
		_ = f.Close() // nothing was written
	}
}

func (d *Dir) open() error {
	var err error
	if d.Path, err = filepath.Abs(d.Path); err != nil {
		return err
	}
	for _, directory := range []string{d.Path, filepath.Join(d.Path, filepath.Dir(mesh.FileIdentity))} {
		if err := os.MkdirAll(directory, 0o700); err != nil {
			return err
		}
		if err := filelock.CheckPrivate(directory, lock); err != nil {
			return fmt.Errorf("%s: %w", directory, err)
		}
	}
	if d.handle, err = os.Open(d.Path); err != nil {
		return err
	}
	if d.lock, err = os.OpenFile(filepath.Join(d.Path, lock), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	err = filelock.Lock(d.lock)
	if err == nil {
		err = filelock.LockDirectory(d.handle)
	}
	if errors.Is(err, filelock.ErrHeld) {
		return errors.New("another agent uses it")
	} else if err != nil {
		return err
	}
	return d.Remove(mesh.SocketAgent, mesh.SocketRecords)
}

// Remove removes files, which may not exist. A socket left behind by a killed process looks alive until a client
// connects.
func (d *Dir) Remove(names ...string) error {
	return d.disk.Do(func() error {
		for _, name := range names {
			if err := os.Remove(d.File(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return nil
	})
}

// Close releases the directory, and removes it if Open created it under $TMPDIR.
func (d *Dir) Close() error {
	var errs []error
	for _, f := range []*os.File{d.handle, d.lock} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	if d.remove {
		errs = append(errs, os.RemoveAll(d.Path))
	}
	return errors.Join(errs...)
}

// File returns the path of a file in the directory.
func (d *Dir) File(name string) string { return filepath.Join(d.Path, name) }

// Socket returns the address of a Unix socket in the directory. The address uses /proc/self/fd, since a socket's path
// may have at most 107 bytes and the directory's may be longer. It is valid in this process only.
func (d *Dir) Socket(name string) *net.UnixAddr {
	return &net.UnixAddr{Net: "unix", Name: filepath.Join("/proc/self/fd", strconv.Itoa(int(d.handle.Fd())), name)}
}

// FileEnding exists once the pod is being deleted: its preStop hook writes it, long before a native sidecar gets a
// signal to end.
const FileEnding = "ending"

// Has reports whether a file exists.
func (d *Dir) Has(name string) bool {
	_, err := os.Stat(d.File(name))
	return err == nil
}

// maxFile limits the size of a file that Read reads, in bytes. The agent's own files are much shorter.
const maxFile = 4 << 20

// Read returns the content of a file. The error wraps fs.ErrNotExist if it does not exist.
func (d *Dir) Read(name string) ([]byte, error) {
	data, err := disk.Ask(d.disk, func() ([]byte, error) { return read(d.File(name)) })
	if err != nil {
		return nil, fmt.Errorf("read work directory: %w", err)
	}
	return data, nil
}

func read(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // opened for reading
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("read %s: more than %d bytes", path, maxFile)
	}
	return data, nil
}

// Write replaces a file by rename, with mode 0600: readers see either the old or the new content.
func (d *Dir) Write(name string, data []byte) error {
	path := d.File(name)
	if err := d.disk.Do(func() error { return replacefile.Bytes(path, 0o600, data) }); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

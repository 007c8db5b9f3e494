package store

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"path"
)

// lastGoodDirectory has a copy of each object file, with the content that was last in use.
const lastGoodDirectory = "last-good"

// lastGood stores the content in use of each file, so that a file that becomes invalid still has it after a restart. A
// nil lastGood stores nothing.
type lastGood struct {
	records *Records
	log     *slog.Logger
}

// copyOf returns the name of the copy of a file, which includes the directory. It is a hash, since the path of the file
// may be too long.
func copyOf(file string) string {
	sum := sha256.Sum256([]byte(file))
	return path.Join(lastGoodDirectory, hex.EncodeToString(sum[:]))
}

// of returns the content of a file that was last in use, nil if it was not stored.
func (g *lastGood) of(file string) []byte {
	if g == nil {
		return nil
	}
	data, err := g.records.Read(copyOf(file))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		g.log.Error("failed to read last good content of a file", "file", file, "err", err)
	}
	return data
}

// keep stores the content of a file that is in use now.
func (g *lastGood) keep(file string, data []byte) {
	if g != nil {
		g.records.later(copyOf(file), data)
	}
}

// forget removes the copy of a deleted file.
func (g *lastGood) forget(file string) {
	if g != nil {
		g.records.removeLater(copyOf(file))
	}
}

// retain removes the copies of all other files, which were deleted since an earlier process.
func (g *lastGood) retain(files map[string]*file) {
	if g == nil {
		return
	}
	kept, err := g.records.List(lastGoodDirectory)
	if err != nil {
		g.log.Error("failed to list last good contents", "err", err)
		return
	}
	wanted := map[string]bool{}
	for name := range files {
		wanted[path.Base(copyOf(name))] = true
	}
	for _, name := range kept {
		if !wanted[name] {
			g.records.removeLater(path.Join(lastGoodDirectory, name))
		}
	}
}

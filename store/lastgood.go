package store

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"path"
)

// lastGoodDirectory has a copy of each file of objects, with the content that was last in use.
const lastGoodDirectory = "last-good"

// lastGood keeps the content in use of each file, so that a file which becomes bad has it after a restart, too. nil keeps nothing.
type lastGood struct {
	records *Records
	log     *slog.Logger
}

// copyOf returns the name of the copy of a file, whose path may be too long for it. A file of another directory is another one.
func copyOf(file string) string {
	sum := sha256.Sum256([]byte(file))
	return path.Join(lastGoodDirectory, hex.EncodeToString(sum[:]))
}

// of returns the content of a file that was last in use, nil if none is kept.
func (g *lastGood) of(file string) []byte {
	if g == nil {
		return nil
	}
	data, err := g.records.Read(copyOf(file))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		g.log.Error("last good content of a file not read", "file", file, "err", err)
	}
	return data
}

// keep keeps the content of a file that is in use now.
func (g *lastGood) keep(file string, data []byte) {
	if g != nil {
		g.records.later(copyOf(file), data)
	}
}

// forget removes the copy of a file that is gone.
func (g *lastGood) forget(file string) {
	if g != nil {
		g.records.removeLater(copyOf(file))
	}
}

// retain removes the copies of all other files: those that are gone since an earlier process.
func (g *lastGood) retain(files map[string]*file) {
	if g == nil {
		return
	}
	kept, err := g.records.List(lastGoodDirectory)
	if err != nil {
		g.log.Error("last good contents not listed", "err", err)
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

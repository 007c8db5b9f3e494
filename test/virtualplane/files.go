package virtualplane

import (
	"fmt"
	"io/fs"
	"slices"
	"sync"
)

// Files are the files of an agent's work directory, which outlives its process. The zero value has
// no files.
type Files struct {
	mu  sync.Mutex
	all map[string][]byte
}

// Read implements identity.Files of dpagent.
func (f *Files) Read(name string) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	data, there := f.all[name]
	if !there {
		return nil, fmt.Errorf("read %s: %w", name, fs.ErrNotExist)
	}
	return slices.Clone(data), nil
}

// Write implements identity.Files of dpagent.
func (f *Files) Write(name string, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[string][]byte{}
	}
	f.all[name] = slices.Clone(data)
	return nil
}

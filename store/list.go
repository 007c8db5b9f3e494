package store

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// endings are the extensions of object files.
var endings = []string{".yaml", ".yml", ".json"}

// Files returns the object files of a directory, as Dir and Read find them, sorted. A skipped entry with such a name is
// a Warning.
func Files(directory string) (names []string, skipped []Problem, err error) {
	files, skipped, err := listDirectory(directory)
	return slices.Sorted(maps.Keys(files)), skipped, err
}

// listDirectory lists the object files of a directory: *.yaml, *.yml and *.json that are not hidden. It follows links
// and does not descend into directories. Anything else with such a name is skipped with a Warning, since an operator
// may expect its objects.
func listDirectory(path string) (files map[string]os.FileInfo, skipped []Problem, err error) {
	all, err := os.ReadDir(path)
	if err != nil {
		return nil, nil, fmt.Errorf("list directory of objects: %w", err)
	}
	files = map[string]os.FileInfo{}
	for _, item := range all {
		ending := filepath.Ext(item.Name())
		if strings.HasPrefix(item.Name(), ".") || !slices.Contains(endings, strings.ToLower(ending)) {
			continue
		}
		name := filepath.Join(path, item.Name())
		info, err := stat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, nil, fmt.Errorf("list directory of objects: %w", err)
		}
		if why := whySkipped(info.Mode(), ending); why != nil {
			skipped = append(skipped, Problem{Place: Place{File: name}, Severity: Warning, Err: why})
		} else {
			files[name] = info
		}
	}
	return files, skipped, nil
}

// whySkipped returns why an entry with that mode and extension is not read, nil for a link: reading it reports why it
// could not be followed.
func whySkipped(mode os.FileMode, ending string) error {
	switch {
	case mode.IsDir():
		return errors.New("is not read: it is a directory, and subdirectories are not read")
	case !mode.IsRegular() && mode.Type() != os.ModeSymlink:
		return errors.New("is not read: it is a named pipe, a socket or a device, not a regular file")
	case !slices.Contains(endings, ending):
		return errors.New("is not read: its name must end in .yaml, .yml or .json, in lower case")
	}
	return nil
}

// stat follows links. For a broken link it describes the link itself: an unreadable file, whose last content stays.
func stat(name string) (os.FileInfo, error) {
	info, err := os.Stat(name)
	if err != nil {
		return os.Lstat(name)
	}
	return info, nil
}

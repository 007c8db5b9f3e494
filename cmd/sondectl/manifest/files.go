package manifest

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/settings"
	"github.com/sonde-mesh/sonde/store"
)

// maxManifests limits the input of all files, in bytes.
const maxManifests = 64 << 20

// Files holds the flags -f and -R for objects of Kubernetes, as in kubectl.
type Files struct {
	paths     []string
	recursive bool
}

// add adds the flags to cmd.
func (f *Files) add(cmd *cobra.Command) {
	cmd.Flags().StringArrayVarP(&f.paths, "file", "f", nil, "`FILE|DIR|-` with the objects, YAML or JSON; - is standard input; of a directory, files *.yaml, *.yml and *.json; may be repeated")
	cmd.Flags().BoolVarP(&f.recursive, "recursive", "R", false, "also read subdirectories of -f")
	settings.Must(cmd.MarkFlagRequired("file"))
	settings.Must(cmd.MarkFlagFilename("file", "yaml", "yml", "json"))
}

// String returns the paths in -f, for messages.
func (f *Files) String() string { return strings.Join(f.paths, ", ") }

// Read reads all documents. wrong has an error for each invalid document; err means that reading failed.
func (f *Files) read(cmd *cobra.Command) (all []Document, wrong []error, err error) {
	names, err := f.names(cmd)
	if err != nil {
		return nil, nil, err
	}
	left := maxManifests
	for _, name := range names {
		data, err := readFile(name, cmd.InOrStdin(), left)
		if err != nil {
			return nil, nil, err
		}
		left -= len(data)
		documents, problems, err := split(name, data)
		if err != nil {
			return nil, nil, err
		}
		all, wrong = append(all, documents...), append(wrong, problems...)
	}
	return all, wrong, nil
}

// names returns the files, each once.
func (f *Files) names(cmd *cobra.Command) ([]string, error) {
	var names []string
	for _, path := range f.paths {
		found := []string{path}
		if path != "-" && IsDirectory(path) {
			var err error
			if found, err = f.below(cmd, path); err != nil {
				return nil, err
			}
		}
		for _, name := range found {
			if slices.Contains(names, name) {
				return nil, settings.Usagef("--file: %q: must be given once", name)
			}
			names = append(names, name)
		}
	}
	return names, nil
}

// below returns the object files of a directory. It warns about an unreadable entry with such a name.
func (f *Files) below(cmd *cobra.Command, directory string) (names []string, err error) {
	root := strings.TrimSuffix(directory, "/") + "/" // follows a link
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !entry.IsDir():
			return nil
		case path != root && (!f.recursive || strings.HasPrefix(entry.Name(), ".")):
			return fs.SkipDir
		}
		files, skipped, err := store.Files(path)
		for _, p := range skipped {
			if !f.recursive || !IsDirectory(p.File) {
				cmd.PrintErrf("%s: warning: %s\n", printer.OneLine(p.File), printer.OneLine(p.Err.Error()))
			}
		}
		names = append(names, files...)
		return err
	})
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("%s: no .yaml, .yml or .json files found", directory)
		if !f.recursive {
			err = fmt.Errorf("%w: -R also reads its subdirectories", err)
		}
	}
	return names, err
}

// readFile reads a file of at most that many bytes, or standard input if its name is "-".
func readFile(name string, stdin io.Reader, most int) ([]byte, error) {
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }() // only reads: a close error loses nothing
		stdin = file
	}
	data, err := io.ReadAll(io.LimitReader(stdin, int64(most)+1))
	switch {
	case err != nil:
		return nil, err // the error names the file
	case len(data) > most:
		return nil, fmt.Errorf("read %s: more than %d bytes", name, maxManifests)
	}
	return data, nil
}

// NoOtherFiles rejects arguments, such as the additional files after a shell expands -f *.yaml.
func NoOtherFiles(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return settings.Usagef("%q: is an unexpected argument: each file needs its own -f", args[0])
}

// IsDirectory reports whether path is a directory.
func IsDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

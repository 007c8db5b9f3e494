package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Getter downloads packages of this machine's distribution with apt, which verifies them.
type Getter struct {
	// Cache is the directory for all versions of packages. Getter creates it.
	Cache string
	// Progress gets a line before a download.
	Progress io.Writer
	// Run runs a program in a directory and returns its output. Default: a process.
	Run func(ctx context.Context, directory, program string, args ...string) ([]byte, error)
}

// Get returns the newest versions of packages in apt's lists, in the order of their names.
func (g *Getter) Get(ctx context.Context, names ...string) (packages []*Package, err error) {
	work, err := g.work() // in the cache itself, apt-get would print nothing for an existing package
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	files, err := g.candidates(ctx, work, append([]string{"download"}, names...))
	if err != nil {
		return nil, err
	}
	if err := g.download(ctx, work, files); err != nil {
		return nil, err
	}
	for _, name := range names {
		content, err := g.Run(ctx, work, "dpkg-deb", "--fsys-tarfile", filepath.Join(g.Cache, files[name]))
		if err != nil {
			return nil, err
		}
		p, err := Read(name, bytes.NewReader(content))
		if err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
	return packages, nil
}

// WithDependencies is Get for these packages and all their dependencies, as if no package were installed.
func (g *Getter) WithDependencies(ctx context.Context, names ...string) (packages []*Package, err error) {
	work, err := g.work()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	files, err := g.candidates(ctx, work, append([]string{"--option=Dir::State::status=/dev/null", "--yes",
		"--no-install-recommends", "install"}, names...))
	if err != nil {
		return nil, err
	}
	return g.Get(ctx, slices.Sorted(maps.Keys(files))...)
}

// work creates a temporary directory for apt-get in the cache.
func (g *Getter) work() (string, error) {
	if g.Run == nil {
		for _, program := range []string{"apt-get", "dpkg-deb"} {
			if _, err := exec.LookPath(program); err != nil {
				return "", fmt.Errorf("find %s: %w: an image takes what is not Sonde's from the packages of Debian or Ubuntu",
					program, err)
			}
		}
		g.Run = output
	}
	if err := os.MkdirAll(g.Cache, 0o750); err != nil {
		return "", err
	}
	return os.MkdirTemp(g.Cache, ".work-")
}

// candidates maps the packages that an apt-get command would download to their files.
func (g *Getter) candidates(ctx context.Context, work string, args []string) (map[string]string, error) {
	out, err := g.Run(ctx, work, "apt-get", append([]string{"--quiet=2", "--print-uris"}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("find packages (does `apt-get update` help?): %w", err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line) // 'URI' FILE SIZE HASH
		if len(fields) < 2 || filepath.Base(fields[1]) != fields[1] {
			return nil, fmt.Errorf("find packages: apt-get says %q", line)
		}
		name, _, _ := strings.Cut(fields[1], "_")
		files[name] = fields[1]
	}
	return files, nil
}

// download downloads the packages whose files are not in the cache.
func (g *Getter) download(ctx context.Context, work string, files map[string]string) error {
	var missing []string
	for name, file := range files {
		if _, err := os.Stat(filepath.Join(g.Cache, file)); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	if _, err := fmt.Fprintf(g.Progress, "getting %s (once; into %s)\n", strings.Join(missing, ", "),
		g.Cache); err != nil {
		return err
	}
	if _, err := g.Run(ctx, work, "apt-get", append([]string{"--quiet", "download"}, missing...)...); err != nil {
		return fmt.Errorf("download packages %s: %w", strings.Join(missing, ", "), err)
	}
	for _, name := range missing {
		if err := os.Rename(filepath.Join(work, files[name]), filepath.Join(g.Cache, files[name])); err != nil {
			return err
		}
	}
	return nil
}

// output runs a program in a directory and returns its output. The error contains its stderr.
func output(ctx context.Context, directory, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // callers name apt-get and dpkg, and the names of packages
	cmd.Dir = directory
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(problems.String()))
	}
	return out, nil
}

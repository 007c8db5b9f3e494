// Package binaries builds the programs of a Kubernetes cluster from their Go modules and keeps them by version.
package binaries

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/tools/cache"
)

// Getter finds programs in a cache, or builds them.
type Getter struct {
	// Kubernetes is the version of the programs. Default: DefaultVersion.
	Kubernetes Version
	// Cache is the directory with a directory for each component. Getter creates it.
	Cache string
	// Progress gets a line before each build, and the compiler's output.
	Progress io.Writer
}

// Get returns a directory with these programs, of Programs and Tests, or with all of Programs without arguments. It
// builds missing programs, which takes minutes. If another process is building, it waits and uses that result. The
// error for an unknown name lists the known ones.
func (g *Getter) Get(ctx context.Context, programs ...string) (string, error) {
	if len(programs) == 0 {
		programs = Programs()
	}
	known := slices.Concat(Programs(), Tests())
	for _, name := range programs {
		if !slices.Contains(known, name) {
			return "", fmt.Errorf("no program %q: choose of %s", name, strings.Join(known, ", "))
		}
	}
	directory := filepath.Join(g.Cache, set(g.Kubernetes))
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return "", fmt.Errorf("create the cache: %w", err)
	}
	for _, c := range components(g.Kubernetes) {
		if err := g.component(ctx, &c, programs, directory); err != nil {
			return "", fmt.Errorf("build %s %s: %w", c.name, c.version, err)
		}
	}
	return directory, nil
}

// component builds the missing ones of c's wanted programs, and links all into directory.
func (g *Getter) component(ctx context.Context, c *component, wanted []string, directory string) error {
	packages := c.packages(wanted)
	names := slices.Sorted(maps.Keys(packages))
	own := filepath.Join(g.Cache, c.directory())
	if err := os.MkdirAll(own, 0o755); err != nil {
		return err
	}
	if len(missing(own, names)) > 0 {
		unlock, err := cache.Lock(ctx, filepath.Join(own, ".lock"))
		if err != nil {
			return err
		}
		defer unlock()
	}
	if missing := missing(own, names); len(missing) > 0 { // another process may have built them in the meantime
		if err := g.build(ctx, c, packages, missing, own); err != nil {
			return err
		}
	}
	for _, name := range names {
		err := os.Symlink(filepath.Join("..", c.directory(), name), filepath.Join(directory, name))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

func missing(directory string, names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		info, err := os.Stat(filepath.Join(directory, name))
		return err == nil && info.Mode().IsRegular()
	})
}

// build builds programs of c, and atomically moves each into directory.
func (g *Getter) build(
	ctx context.Context, c *component, packages map[string]string, names []string, directory string,
) error {
	work := filepath.Join(directory, ".build")
	if err := errors.Join(os.RemoveAll(work), os.Mkdir(work, 0o755)); err != nil { // from a killed process
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	if _, err := fmt.Fprintf(g.Progress, "building %s of %s %s (once; into %s)\n",
		strings.Join(names, ", "), c.name, c.version, directory); err != nil {
		return err
	}
	if err := writeModule(ctx, c, work); err != nil {
		return err
	}
	for _, name := range names {
		command := []string{"build"}
		if strings.HasSuffix(name, testSuffix) {
			command = []string{"test", "-c"}
		}
		command = append(command, "-trimpath", "-ldflags", "-s -w "+c.ldflags, "-o",
			filepath.Join(work, name), packages[name])
		cmd := exec.CommandContext(ctx, "go", command...)
		cmd.Dir, cmd.Env = work, environment()
		cmd.Stdout, cmd.Stderr = g.Progress, g.Progress
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("build %s: %w", name, err)
		}
		if err := os.Rename(filepath.Join(work, name), filepath.Join(directory, name)); err != nil {
			return err
		}
	}
	return nil
}

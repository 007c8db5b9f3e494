package binaries

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
)

// goVersion is the language version of the generated modules.
const goVersion = "1.26.0"

// writeModule writes a module to directory that requires only the component, so that dependencies have the same
// versions as in the component's release. `go install` cannot build a module with replacements.
func writeModule(ctx context.Context, c *component, directory string) error {
	file := new(modfile.File)
	if err := file.AddModuleStmt("testbed/" + c.name); err != nil {
		return err
	}
	if err := file.AddGoStmt(goVersion); err != nil {
		return err
	}
	if c.source != "" {
		if err := os.WriteFile(filepath.Join(directory, "main.go"), []byte(c.source), 0o644); err != nil {
			return err
		}
	} else if err := file.AddRequire(c.module, c.moduleVersion); err != nil {
		return err
	}
	if c.staging != "" {
		if err := replaceStaging(ctx, c, directory, file); err != nil {
			return err
		}
	}
	text, err := file.Format()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(directory, "go.mod"), text, 0o644)
}

// replaceStaging adds the replacements of the component's own go.mod, and the patched source, to the module in
// directory.
func replaceStaging(ctx context.Context, c *component, directory string, file *modfile.File) error {
	original, err := download(ctx, c, directory)
	if err != nil {
		return err
	}
	if c.patch != nil {
		if err := c.patch.copyTo(filepath.Join(directory, "patched"), original); err != nil {
			return err
		}
		if err := file.AddReplace(c.module, "", "./patched", ""); err != nil {
			return err
		}
	}
	goMod, err := os.ReadFile(filepath.Join(original, "go.mod"))
	if err != nil {
		return err
	}
	replaces, err := stagingReplaces(goMod, c.staging, c.stagingVersion)
	if err != nil {
		return err
	}
	for _, m := range replaces {
		if err := file.AddReplace(m.Path, "", m.Path, m.Version); err != nil {
			return err
		}
	}
	return nil
}

// stagingReplaces returns the modules that a go.mod replaces by directories of its own repository, with the version
// under which they are published. A replacement without the prefix, or no replacement, is an error: the assumptions
// about the module are wrong.
func stagingReplaces(goMod []byte, prefix, version string) ([]module.Version, error) {
	file, err := modfile.Parse("go.mod", goMod, nil)
	if err != nil {
		return nil, err
	}
	var modules []module.Version
	for _, r := range file.Replace {
		if !strings.HasPrefix(r.Old.Path, prefix) || !modfile.IsDirectoryPath(r.New.Path) {
			return nil, fmt.Errorf("go.mod of %s replaces %s by %s: only directories for %s… are known", file.Module.Mod.Path, r.Old.Path, r.New.Path, prefix)
		}
		modules = append(modules, module.Version{Path: r.Old.Path, Version: version})
	}
	if len(modules) == 0 {
		return nil, fmt.Errorf("go.mod of %s replaces nothing: directories for %s… are expected", file.Module.Mod.Path, prefix)
	}
	slices.SortFunc(modules, func(a, b module.Version) int { return strings.Compare(a.Path, b.Path) })
	return modules, nil
}

// copyTo copies a module with the patch to a directory, since Go's downloads must not change.
func (p *patch) copyTo(directory, module string) error {
	if err := os.CopyFS(directory, os.DirFS(module)); err != nil {
		return err
	}
	path := filepath.Join(directory, p.file)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	patched, err := p.apply(string(text))
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(patched), 0o644)
}

// download makes Go download the component's module, and returns its directory.
func download(ctx context.Context, c *component, directory string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", c.module+"@"+c.moduleVersion)
	cmd.Dir = directory
	cmd.Env = environment()
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	runError := cmd.Run()
	var info struct{ Dir, Error string }
	if err := json.Unmarshal(out.Bytes(), &info); err != nil || info.Error != "" || runError != nil {
		return "", fmt.Errorf("download %s@%s: %w %s%s (Go needs a module proxy, see `go env GOPROXY`)", c.module, c.moduleVersion, runError, info.Error, problems.String())
	}
	return info.Dir, nil
}

// environment of all go commands: static programs, and a go.mod that Go updates.
func environment() []string {
	return append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod", "GOWORK=off")
}

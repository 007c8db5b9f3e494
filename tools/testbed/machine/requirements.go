// Package machine manages a cluster's resources on the machine: programs, processes, cgroups, mounts and network
// namespaces.
package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Required programs, with their packages in Debian and Ubuntu.
var required = []struct{ program, packaged string }{
	{"runc", "runc"},
	{"ip", "iproute2"},
	{"nft", "nftables"},
	{"nsenter", "util-linux"},
	{"unshare", "util-linux"},
	{"sysctl", "procps"},
	{"mount", "mount"},
}

// Required CNI plugins, and their package.
var plugins = []string{"ptp", "host-local", "loopback", "portmap", "tuning"}

const (
	pluginPackage = "containernetworking-plugins"
	// overlayMagic is the type of an overlay file system, on which another overlay cannot be mounted (linux/magic.h).
	overlayMagic = 0x794c7630
)

// Paths are the paths for a cluster's configuration.
type Paths struct {
	Runc string
	// Plugins is the directory of CNI plugins.
	Plugins string
}

// probe has the properties of the machine for Requirements.
type probe struct {
	uid         int
	lookPath    func(program string) (string, error)
	pluginDirs  []string
	filesystems string
	controllers []string
	// overlay means that the state directory is on an overlay file system.
	overlay bool
	// noIPv6 means that the cluster needs IPv6, but the kernel does not support it.
	noIPv6 bool
	// confined is the error if root cannot create namespaces and mounts, as in an unprivileged container.
	confined error
}

// Requirements returns the programs for a cluster with this state directory, with or without IPv6. The error lists
// everything that is missing, and how to install it.
func Requirements(ctx context.Context, state string, ipv6 bool) (Paths, error) {
	filesystems, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return Paths{}, err
	}
	controllers, err := Controllers()
	if err != nil {
		return Paths{}, err
	}
	overlay, err := onOverlay(state)
	if err != nil {
		return Paths{}, err
	}
	_, err = os.Stat("/proc/sys/net/ipv6")
	return probe{
		uid: os.Getuid(), lookPath: lookPath, pluginDirs: []string{"/usr/lib/cni", "/opt/cni/bin"},
		filesystems: string(filesystems), controllers: controllers, overlay: overlay, noIPv6: ipv6 && err != nil,
		confined: confined(ctx),
	}.requirements()
}

// confined tries to create mount and network namespaces, like each node.
func confined(ctx context.Context) error {
	mount := []string{"--mount", "--net", "mount", "-t", "tmpfs", "tmpfs", "/mnt"}
	text, err := exec.CommandContext(ctx, "unshare", mount...).CombinedOutput()
	if err == nil || os.Getuid() != 0 || errors.Is(err, exec.ErrNotFound) { // reported elsewhere
		return nil
	}
	return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(text)))
}

func (p probe) requirements() (Paths, error) {
	var paths Paths
	var faults []error
	var packages []string
	need := func(what, packaged string) {
		faults = append(faults, fmt.Errorf("%s is missing (package %s)", what, packaged))
		packages = append(packages, packaged)
	}
	if p.uid != 0 {
		faults = append(faults, fmt.Errorf("user %d is not root: network namespaces, mounts and cgroups need root", p.uid))
	}
	for _, r := range required {
		path, err := p.lookPath(r.program)
		if err != nil {
			need(r.program, r.packaged)
		}
		if r.program == "runc" {
			paths.Runc = path
		}
	}
	if i := slices.IndexFunc(p.pluginDirs, hasPlugins); i >= 0 {
		paths.Plugins = p.pluginDirs[i]
	} else {
		all, directories := strings.Join(plugins, ", "), strings.Join(p.pluginDirs, ", ")
		need(fmt.Sprintf("a directory with the CNI plugins %s (%s)", all, directories), pluginPackage)
	}
	if !slices.Contains(strings.Fields(p.filesystems), "overlay") {
		faults = append(faults, errors.New("the kernel has no overlay file system: `modprobe overlay`"))
	}
	if p.overlay {
		faults = append(faults, errors.New("the state directory is on an overlay file system, which cannot hold images: choose another with --state"))
	}
	if p.confined != nil {
		faults = append(faults, fmt.Errorf("root may not make network and mount namespaces here, as in a container without privileges: %w", p.confined))
	}
	if p.noIPv6 {
		faults = append(faults, errors.New("the kernel has no IPv6: choose --ip-family=ipv4"))
	}
	for _, c := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(p.controllers, c) {
			faults = append(faults, fmt.Errorf("the cgroup controller %s is missing below %s", c, cgroupRoot))
		}
	}
	if len(packages) > 0 {
		slices.Sort(packages)
		packages = slices.Compact(packages)
		faults = append(faults, fmt.Errorf("to install what is missing: apt-get install %s", strings.Join(packages, " ")))
	}
	return paths, errors.Join(faults...)
}

func hasPlugins(directory string) bool {
	for _, plugin := range plugins {
		if _, err := os.Stat(filepath.Join(directory, plugin)); err != nil {
			return false
		}
	}
	return true
}

// lookPath also searches directories that may be missing in the PATH of a user who has become root.
func lookPath(program string) (string, error) {
	for _, directory := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if path, err := exec.LookPath(filepath.Join(directory, program)); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// onOverlay checks the nearest existing directory.
func onOverlay(directory string) (bool, error) {
	var stat syscall.Statfs_t
	for {
		err := syscall.Statfs(directory, &stat)
		if err == nil {
			return stat.Type == overlayMagic, nil
		}
		if !errors.Is(err, syscall.ENOENT) || directory == filepath.Dir(directory) {
			return false, fmt.Errorf("find the file system of %s: %w", directory, err)
		}
		directory = filepath.Dir(directory)
	}
}

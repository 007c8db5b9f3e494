package machine

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
)

// Unmount unmounts everything that is mounted below a directory, also what is still in use.
func Unmount(directory string) error {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	var faults []error
	for _, point := range slices.Backward(mountsBelow(string(text), directory)) {
		if err := syscall.Unmount(point, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) {
			faults = append(faults, fmt.Errorf("unmount %s: %w", point, err))
		}
	}
	return errors.Join(faults...)
}

var unescapeMount = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// mountsBelow returns the mount points below a directory, in the order of the table, which has a mount after that on which it is.
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

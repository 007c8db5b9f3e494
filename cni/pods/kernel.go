package pods

import (
	"fmt"
	"os"

	"github.com/containernetworking/cni/libcni"

	"github.com/sonde-mesh/sonde/dpagent/redirect"
)

// Namespaces implements Kernel on this node.
type Namespaces struct{}

var _ Kernel = Namespaces{}

// Install implements Kernel.
func (Namespaces) Install(path string, o redirect.Options) error {
	return inside(path, func(fd int) error { return redirect.InstallIn(fd, o) })
}

// Check implements Kernel.
func (Namespaces) Check(path string, o redirect.Options) (differences []string, err error) {
	err = inside(path, func(fd int) error {
		differences, err = redirect.CheckIn(fd, o)
		return err
	})
	return differences, err
}

func inside(path string, work func(fd int) error) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer func() { _ = f.Close() }()
	if err := work(int(f.Fd())); err != nil {
		return fmt.Errorf("network namespace %s: %w", path, err)
	}
	return nil
}

// Cached returns a function that lists the sandboxes in the cache of the container runtime's CNI library, which only
// root can read.
func Cached(directory string) func() ([]Sandbox, error) {
	return func() (all []Sandbox, err error) {
		attachments, err := libcni.NewCNIConfigWithCacheDir(nil, directory, nil).GetCachedAttachments("")
		if err != nil {
			return nil, err
		}
		for _, a := range attachments {
			s := Sandbox{ContainerID: a.ContainerID, NetNS: a.NetNS}
			for _, arg := range a.CniArgs {
				switch arg[0] {
				case "K8S_POD_NAMESPACE":
					s.Namespace = arg[1]
				case "K8S_POD_NAME":
					s.Name = arg[1]
				case "K8S_POD_UID":
					s.UID = arg[1]
				}
			}
			if s.Name != "" {
				all = append(all, s)
			}
		}
		return all, nil
	}
}

package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
)

// maxFile is the size of a configuration file, in bytes.
const maxFile = 1 << 20

// file is the configuration of the Dependency Watchdog's prober. Settings that it does not have may be in it, too.
type file struct {
	KubeConfigSecretName   string                      `json:"kubeConfigSecretName"`
	DependentResourceInfos []v1alpha1.WatchedDependant `json:"dependentResourceInfos"`
	v1alpha1.WatchSettings `json:",inline"`
}

// ReadFile reads the file of a prober of the Dependency Watchdog, as the spec of a WatchedCluster of a namespace. local says that the local
// cluster is watched, whatever Secret the file names.
func ReadFile(path, namespace string, local bool, self Self) (*v1alpha1.WatchedClusterSpec, error) {
	data, err := contentOf(path)
	if err != nil {
		return nil, err
	}
	spec, err := parse(data, namespace, local, self)
	if err != nil {
		return nil, fmt.Errorf("read the configuration %s: %w", path, err)
	}
	return spec, nil
}

func contentOf(path string) ([]byte, error) {
	r, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	defer r.Close() //nolint:errcheck // it was only read
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("read the configuration %s: must be at most %d bytes", path, maxFile)
	}
	return data, nil
}

func parse(data []byte, namespace string, local bool, self Self) (*v1alpha1.WatchedClusterSpec, error) {
	body, err := toJSON(data)
	if err != nil {
		return nil, err
	}
	if isConfigMap(body) {
		return nil, errors.New("it is a ConfigMap: must be the file that is in its data; sondectl watchdog import reads ConfigMaps, too")
	}
	unknown := unknownKeys(body)
	var f file
	if err := json.Unmarshal(body, &f); err != nil {
		return nil, errors.Join(unknown, mesh.ExplainJSON("", body, &f))
	}
	if unknown != nil {
		return nil, unknown
	}
	spec := &v1alpha1.WatchedClusterSpec{
		KubeconfigSecretName: f.KubeConfigSecretName, Local: local, Dependants: f.DependentResourceInfos, Settings: f.WatchSettings,
	}
	if err := validate(spec, namespace, self, ofFile); err != nil {
		return nil, err
	}
	if local {
		spec.KubeconfigSecretName = ""
	}
	return spec, nil
}

// unknownKeys returns an error for each key that nothing reads. One in another letter case is read, as the Dependency Watchdog reads it.
func unknownKeys(body []byte) error {
	var errs []error
	mesh.CheckJSON("", body, &file{}, func(*mesh.FieldError) {}, func(path, name string, known []string) {
		if slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, name) }) {
			return
		}
		allowed := mesh.UnknownField(name, known)
		if instead := former[strings.ToLower(name)]; instead != "" {
			allowed = instead
		}
		errs = append(errs, &mesh.FieldError{Field: path, Allowed: allowed})
	})
	return errors.Join(errs...)
}

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

// maxFile limits a configuration file, in bytes.
const maxFile = 1 << 20

// file is the configuration of the Dependency Watchdog's prober, which may also have Sonde's settings.
type file struct {
	KubeConfigSecretName   string                      `json:"kubeConfigSecretName"`
	DependentResourceInfos []v1alpha1.WatchedDependant `json:"dependentResourceInfos"`
	v1alpha1.WatchSettings `json:",inline"`
}

// ReadFile converts a prober file of the Dependency Watchdog to the spec of a WatchedCluster in a namespace. local
// selects the local cluster, and ignores the Secret in the file.
func ReadFile(path, namespace string, local bool, self Self) (*v1alpha1.WatchedClusterSpec, error) {
	data, err := contentOf(path)
	if err != nil {
		return nil, err
	}
	spec, err := parse(data, namespace, local, self)
	if err != nil {
		return nil, fmt.Errorf("read configuration %s: %w", path, err)
	}
	return spec, nil
}

func contentOf(path string) ([]byte, error) {
	r, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer r.Close() //nolint:errcheck // opened for reading
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("read configuration %s: must be at most %d bytes", path, maxFile)
	}
	return data, nil
}

func parse(data []byte, namespace string, local bool, self Self) (*v1alpha1.WatchedClusterSpec, error) {
	body, err := toJSON(data)
	if err != nil {
		return nil, err
	}
	if isConfigMap(body) {
		return nil, errors.New(
			"must be the file inside the ConfigMap, not the ConfigMap; sondectl watchdog import reads ConfigMaps too")
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
		KubeconfigSecretName: f.KubeConfigSecretName, Local: local, Dependants: f.DependentResourceInfos,
		Settings: f.WatchSettings,
	}
	if err := validate(spec, namespace, self, ofFile); err != nil {
		return nil, err
	}
	if local {
		spec.KubeconfigSecretName = ""
	}
	return spec, nil
}

// unknownKeys returns an error for each unknown key. Keys are case-insensitive, as in the Dependency Watchdog.
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

package secrets

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// The Secret of a mesh's CA is sonde-ca-<mesh>, with the key ca.json. Other Secrets are sonde-<name>, with the name as
// key, such as sonde-serving-ca.crt and sonde-admin-token.
const (
	prefix   = "sonde-"
	caPrefix = prefix + "ca-"
	caKey    = "ca.json"
	caOf     = "meshes/"
)

// objectOf returns the Secret and the key for the secret of that name.
func objectOf(name string) (object, error) {
	o := object{name: prefix + name, key: name}
	if rest, ok := strings.CutPrefix(name, caOf); ok {
		meshName, key, _ := strings.Cut(rest, "/")
		o = object{name: caPrefix + meshName, key: key}
	}
	if back, ok := nameOf(o.name); !ok || back != name || len(validation.IsDNS1123Subdomain(o.name)) > 0 {
		return object{}, fmt.Errorf("%q: %w", name, errName)
	}
	return o, nil
}

// nameOf is the reverse of objectOf. It returns false for a Secret of another kind.
func nameOf(object string) (string, bool) {
	if meshName, ok := strings.CutPrefix(object, caPrefix); ok {
		return caOf + meshName + "/" + caKey, meshName != ""
	}
	name, ok := strings.CutPrefix(object, prefix)
	return name, ok && name != "" && !strings.Contains(name, "/")
}

// Package names parses names in arguments: NAME, or KIND/NAME as get -o name and kubectl write it.
package names

import (
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/internal/settings"
)

// Kind is the kind of an object, as -o name writes it.
type Kind string

// Kinds.
const (
	Mesh           Kind = "mesh"
	Dataplane      Kind = "dataplane"
	Service        Kind = "service"
	MeshService    Kind = "meshservice"
	Proxy          Kind = "proxy"
	Node           Kind = "node"
	Pod            Kind = "pod"
	WatchedCluster Kind = "watchedcluster"
)

// words maps kinds to their other names, as in kubectl.
var words = map[Kind][]string{
	Mesh: {"meshes"}, Dataplane: {"dataplanes", "dp"}, Service: {"services", "svc"}, MeshService: {"meshservices", "msvc"},
	Proxy: {"proxies"}, Node: {"nodes", "no"}, Pod: {"pods", "po"}, WatchedCluster: {"watchedclusters"},
}

// Words returns other names of a kind: its plural first, then short forms.
func (k Kind) Words() []string { return words[k] }

// KindOf returns the kind with a name, in upper or lower case, and false for an unknown one. kubectl appends Sonde's
// group to names.
func KindOf(word string) (Kind, bool) {
	word = strings.TrimSuffix(strings.ToLower(word), ".sonde.dev")
	for kind, others := range words {
		if word == string(kind) || slices.Contains(others, word) {
			return kind, true
		}
	}
	return "", false
}

// Parse returns the name in an argument, and its kind, "" without one. Unless proxies are among the kinds, it returns a
// proxy as its Dataplane, which has the same name. The error is a usage error that lists the allowed forms.
func Parse(arg string, among ...Kind) (kind Kind, name string, err error) {
	word, name, named := strings.Cut(arg, "/")
	if !named {
		word, name = "", arg
	}
	kind, ok := KindOf(word)
	if kind == Proxy && !slices.Contains(among, Proxy) {
		kind = Dataplane
	}
	switch {
	case arg == "":
		return "", "", settings.Usagef("NAME: must not be empty")
	case !named:
		return "", name, nil
	case ok && slices.Contains(among, kind) && name != "" && !strings.Contains(name, "/"):
		return kind, name, nil
	}
	return "", "", settings.Usagef("%q: must be %s", arg, forms(among))
}

// forms lists the allowed forms.
func forms(among []Kind) string {
	all := []string{"NAME"}
	for _, kind := range among {
		all = append(all, string(kind)+"/NAME")
	}
	last := len(all) - 1
	return strings.Join(all[:last], ", ") + " or " + all[last]
}

// Flag is the value of a flag with a name.
type Flag struct {
	To    *string
	Among []Kind
}

// String implements pflag.Value.
func (f *Flag) String() string {
	if f.To == nil {
		return ""
	}
	return *f.To
}

// Type implements pflag.Value.
func (*Flag) Type() string { return "string" }

// Set implements pflag.Value. An empty value is the same as no flag.
func (f *Flag) Set(arg string) error {
	if arg == "" {
		*f.To = ""
		return nil
	}
	_, name, err := Parse(arg, f.Among...)
	if err == nil {
		*f.To = name
	}
	return err
}

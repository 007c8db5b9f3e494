// Package names reads what commands are asked for: NAME, or KIND/NAME as get -o name and kubectl write it.
package names

import (
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/internal/settings"
)

// Kind of an object, as -o name writes it.
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

// words are what else the kinds are called, as for kubectl.
var words = map[Kind][]string{
	Mesh: {"meshes"}, Dataplane: {"dataplanes", "dp"}, Service: {"services", "svc"}, MeshService: {"meshservices", "msvc"}, Proxy: {"proxies"},
	Node: {"nodes", "no"}, Pod: {"pods", "po"}, WatchedCluster: {"watchedclusters"},
}

// Words returns what else a kind is called: its plural first, then short forms.
func (k Kind) Words() []string { return words[k] }

// KindOf returns the kind that a word means, in any case, and false for no kind. kubectl appends the group of Sonde's own.
func KindOf(word string) (Kind, bool) {
	word = strings.TrimSuffix(strings.ToLower(word), ".sonde.dev")
	for kind, others := range words {
		if word == string(kind) || slices.Contains(others, word) {
			return kind, true
		}
	}
	return "", false
}

// Parse returns the name in an argument, and its kind; "" of a name alone. A proxy is read as its Dataplane, which has the same name, unless it is
// among the kinds. The error is one of usage, and says what is allowed.
func Parse(arg string, among ...Kind) (kind Kind, name string, err error) {
	word, name, named := strings.Cut(arg, "/")
	if !named {
		word, name = "", arg
	}
	kind, known := KindOf(word)
	if kind == Proxy && !slices.Contains(among, Proxy) {
		kind = Dataplane
	}
	switch {
	case arg == "":
		return "", "", settings.Usagef("NAME: must not be empty")
	case !named:
		return "", name, nil
	case known && slices.Contains(among, kind) && name != "" && !strings.Contains(name, "/"):
		return kind, name, nil
	}
	return "", "", settings.Usagef("%q: must be %s", arg, forms(among))
}

// forms lists what is allowed.
func forms(among []Kind) string {
	all := []string{"NAME"}
	for _, kind := range among {
		all = append(all, string(kind)+"/NAME")
	}
	last := len(all) - 1
	return strings.Join(all[:last], ", ") + " or " + all[last]
}

// Flag is the value of a flag that is a name.
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

// Set implements pflag.Value. Empty is as without the flag.
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

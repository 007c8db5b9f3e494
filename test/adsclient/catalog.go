package adsclient

import (
	"slices"
	"sync"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// Catalog is shared by many clients. It stores names and versions as numbers, and knows which endpoints a cluster
// refers to and which routes a listener refers to. So each version of a resource is decoded only once, for any number
// of clients. Its entries are never removed. It is safe for concurrent use.
type Catalog struct {
	mu       sync.RWMutex
	names    numbers
	versions numbers
	refs     map[refKey][]uint32
}

// numbers assigns a number to each text.
type numbers struct {
	byText map[string]uint32
	texts  []string
}

type refKey struct {
	kind          int
	name, version uint32
}

// Numbers that are not versions: the name was requested but not answered yet, and the resource does not exist.
const (
	unanswered uint32 = iota
	absent
)

// NewCatalog returns an empty Catalog.
func NewCatalog() *Catalog {
	return &Catalog{
		names:    numbers{byText: map[string]uint32{}},
		versions: numbers{byText: map[string]uint32{}, texts: []string{"", ""}},
		refs:     map[refKey][]uint32{},
	}
}

func (n *numbers) add(text []byte) uint32 {
	if i, ok := n.byText[string(text)]; ok {
		return i
	}
	i := uint32(len(n.texts))
	n.texts = append(n.texts, string(text))
	n.byText[n.texts[i]] = i
	return i
}

// number returns the numbers of a resource's name and version.
func (c *Catalog) number(name, version []byte) (uint32, uint32) {
	c.mu.RLock()
	n, known := c.names.byText[string(name)]
	v, knownVersion := c.versions.byText[string(version)]
	c.mu.RUnlock()
	if known && knownVersion {
		return n, v
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.names.add(name), c.versions.add(version)
}

// text returns the texts of numbers.
func (c *Catalog) text(list []uint32) []string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	texts := make([]string, len(list))
	for i, n := range list {
		texts[i] = c.names.texts[n]
	}
	return texts
}

// references returns the numbers of the names that a version of a cluster or listener refers to.
func (c *Catalog) references(kind int, name, version uint32, body []byte) ([]uint32, error) {
	key := refKey{kind, name, version}
	c.mu.RLock()
	refs, known := c.refs[key]
	c.mu.RUnlock()
	if known {
		return refs, nil
	}
	texts, err := decodeReferences(kind, body)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, text := range texts {
		refs = append(refs, c.names.add([]byte(text)))
	}
	c.refs[key] = refs
	return refs, nil
}

// known is like references, for a version that was decoded before.
func (c *Catalog) known(kind int, name, version uint32) []uint32 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.refs[refKey{kind, name, version}]
}

func decodeReferences(kind int, body []byte) ([]string, error) {
	r, err := envoysim.Decode(&anypb.Any{TypeUrl: string(resource.Types()[kind]), Value: body})
	if err != nil {
		return nil, err
	}
	if r.Endpoints != "" {
		return []string{r.Endpoints}, nil
	}
	slices.Sort(r.Routes)
	return slices.Compact(r.Routes), nil
}

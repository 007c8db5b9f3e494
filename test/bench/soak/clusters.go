package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sonde-mesh/sonde/test/envoysim"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// clusterIndex knows to which clusters each version of a listener or route sends. It also checks that a version always has the
// same bytes.
type clusterIndex struct {
	mu    sync.RWMutex
	known map[resourceKey][]string
}

type resourceKey struct {
	kind          resource.Type
	name, version string
}

// add is called for each resource that any proxy gets.
func (l *clusterIndex) add(t resource.Type, name, version, body []byte) error {
	sum := sha256.Sum256(body) // of each, also of one whose version is known
	if hash := hex.EncodeToString(sum[:]); len(version) == 0 || hash[:len(version)] != string(version) {
		return fmt.Errorf("the version is %q, the hash of the bytes %s", version, hash)
	}
	key := resourceKey{t, string(name), string(version)}
	l.mu.RLock()
	_, known := l.known[key]
	l.mu.RUnlock()
	if known {
		return nil
	}
	r, err := envoysim.Decode(&anypb.Any{TypeUrl: string(t), Value: body})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known[key] = r.Clusters
	return nil
}

// of returns the clusters that a resource sends to.
func (l *clusterIndex) of(t resource.Type, name, version string) []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.known[resourceKey{t, name, version}]
}

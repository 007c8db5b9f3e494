package feature

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/envoysim"
	"github.com/sonde-mesh/sonde/test/featuretest"
)

// TestChurn changes the store at random while clients of both protocols come, go and stay, and control planes are restarted.
// At the end each client has what a new one gets, byte for byte.
func TestChurn(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			churn(t, rand.New(rand.NewPCG(seed, 0)), envoysim.Protocols()[seed%2])
		})
	}
}

func churn(t *testing.T, random *rand.Rand, p envoysim.Protocol) {
	t.Helper()
	f := featuretest.Start(t, "two-services")
	stays, comes := f.Connect("web-1", p), f.Connect("web-1", envoysim.Delta)
	// A proxy may have three streams; a fourth ends the oldest.
	goes := func() {
		comes.Close()
		featuretest.Eventually(t, func() string {
			if n := len(f.Status()); n > 1 {
				return fmt.Sprintf("there are %d streams", n)
			}
			return ""
		})
	}
	files := []string{
		"api-2.yaml", "api-2-canary.yaml", "api-2-unready.yaml", "api-1-unready.yaml", "../api-1.yaml", "api-outside.yaml",
		"cache-1.yaml", "web-1-cache.yaml", "web-1-without-api.yaml", "../web-1.yaml", "../db-1.yaml",
		"mesh-permissive.yaml", "mesh-off.yaml", "../mesh.yaml",
	}
	deletable := []string{"api-1", "api-2", "cache-1", "db-1", "web-1"}
	for range 60 {
		switch random.IntN(12) {
		case 0, 1, 2:
			name := deletable[random.IntN(len(deletable))]
			if f.Knows(mesh.KindDataplane, name) {
				f.Delete(mesh.KindDataplane, name)
			}
		case 3:
			f.Observe("api-1", mesh.Observation{Draining: random.IntN(2) == 0})
		case 4:
			goes()
			comes.Reconnect()
		case 5:
			goes()
			f.Put(files[random.IntN(len(files))])
			comes.Reconnect()
		case 6:
			f.Restart()
			stays.Reconnect()
			comes.Reconnect()
		default:
			f.Put(files[random.IntN(len(files))])
		}
	}
	if !f.Knows(mesh.KindDataplane, "web-1") {
		f.Put("web-1-cache.yaml")
	}
	fresh := f.Connect("web-1", envoysim.Delta)
	fresh.Sync()
	for _, c := range []*featuretest.Client{stays, comes} {
		c.Sync()
		if diff := cmp.Diff(fresh.Has(), c.Has()); diff != "" {
			t.Errorf("%v has something else than one that is new (-new +old):\n%s", c, diff)
		}
	}
}

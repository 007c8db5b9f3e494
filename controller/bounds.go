package controller

import (
	"context"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/objects"
	"github.com/sonde-mesh/sonde/controller/source"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/internal/podcause"
)

const (
	// boundsEvery is the interval of events about objects beyond the bounds.
	boundsEvery = time.Minute
	// maxTold is the number of objects of one kind and namespace that get an event, so that one namespace does not use
	// up the events of all.
	maxTold = 10
)

// tellBounds records events about objects with parts that have no effect, until ctx ends. Then it returns nil.
func (c *Controller) tellBounds(ctx context.Context) error {
	for {
		for _, e := range boundsEvents(append(c.Cluster.Problems(), objectsBeyond(c.Objects.Problems())...)) {
			c.Events.Record(e)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(boundsEvery):
		}
	}
}

// boundsEvents returns an event for each of the first objects of a kind and namespace. The objects are sorted, so that
// each call returns the same ones.
func boundsEvents(problems []source.Problem) (all []events.Event) {
	type kindIn struct{ kind, namespace string }
	told := map[kindIn]int{}
	for _, p := range problems {
		of := kindIn{p.Kind, p.Namespace}
		if told[of]++; told[of] > maxTold {
			continue
		}
		all = append(all, events.Event{
			Kind: p.Kind, APIVersion: p.APIVersion, Namespace: p.Namespace, Name: p.Name, UID: p.UID,
			Reason: podcause.BeyondBounds, Action: "Read", Note: p.Text,
		})
	}
	return all
}

// objectsBeyond returns the objects of group sonde.dev that are beyond the bounds.
func objectsBeyond(problems []objects.Problem) (all []source.Problem) {
	kinds := map[string]mesh.Kind{"meshes": mesh.KindMesh, "dataplanes": mesh.KindDataplane}
	for _, p := range problems {
		if p.Bounds {
			all = append(all, source.Problem{
				Kind: string(kinds[p.Resource]), APIVersion: v1alpha1.GroupVersion.String(),
				Key: watch.Key{Namespace: p.Namespace, Name: p.Name}, UID: p.UID, Text: p.Text,
			})
		}
	}
	return all
}

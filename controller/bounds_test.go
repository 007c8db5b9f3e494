package controller

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/objects"
	"github.com/sonde-mesh/sonde/controller/source"
	"github.com/sonde-mesh/sonde/controller/watch"
)

// Events report objects beyond the bounds, for a bounded number of objects of each namespace.
func TestBoundsEvents(t *testing.T) {
	var problems []source.Problem
	for i := range maxTold + 5 {
		problems = append(problems, source.Problem{Kind: "Pod", APIVersion: "v1", Key: watch.Key{Namespace: "greedy", Name: fmt.Sprintf("p-%02d", i)}, Text: "too many"})
	}
	problems = append(problems, objectsBeyond([]objects.Problem{
		{Resource: "dataplanes", Namespace: "modest", Name: "vm", UID: "u", Text: "too large", Bounds: true},
		{Resource: "dataplanes", Namespace: "modest", Name: "other", Text: "not valid"},
	})...)
	all := boundsEvents(problems)
	want := events.Event{Kind: "Dataplane", APIVersion: "sonde.dev/v1alpha1", Namespace: "modest", Name: "vm", UID: "u", Reason: "BeyondBounds", Action: "Read", Note: "too large"}
	if len(all) != maxTold+1 || cmp.Diff(want, all[maxTold]) != "" {
		t.Errorf("%d events, and the last is %+v; want %d, and %+v", len(all), all[len(all)-1], maxTold+1, want)
	}
}

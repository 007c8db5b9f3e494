package meshview

import (
	"runtime"
	"testing"
	"weak"
)

// A control plane runs for months. A view that is no longer used must be freed, so later views must not refer to it.
func TestViewsOfBeforeAreForgotten(t *testing.T) {
	b := set(dataplane("api-1", "10.0.0.1", "api"))
	view := weak.Make(mustBuild(t, b).After)
	mesh := weak.Make(view.Value().Mesh("default"))
	b.Set("files", dataplane("api-1", "10.0.0.2", "api"))
	last := mustBuild(t, b).After
	runtime.GC()
	if view.Value() != nil {
		t.Error("the view of before stays in memory")
	}
	if mesh.Value() != nil {
		t.Error("its mesh stays in memory")
	}
	runtime.KeepAlive(last)
	runtime.KeepAlive(b)
}

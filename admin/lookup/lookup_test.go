package lookup

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/meshview"
)

func TestNothingIsFoundBeforeTheFirstView(t *testing.T) {
	none := View(func() *meshview.View { return nil })
	calls := map[string]func(context.Context) error{
		"Await":  func(ctx context.Context) error { _, err := none.Await(ctx); return err },
		"Within": func(ctx context.Context) error { _, err := none.Within(ctx, "default"); return err },
		"Mesh":   func(ctx context.Context) error { _, err := none.Mesh(ctx, "default"); return err },
		"Proxy":  func(ctx context.Context) error { _, err := none.Proxy(ctx, "", "web-1"); return err },
	}
	for name, call := range calls {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			if err := call(t.Context()); status.Code(err) != codes.Unavailable || time.Since(begun) != firstViewTimeout {
				t.Errorf("%s: %v after %s, want %s after %s", name, err, time.Since(begun), codes.Unavailable, firstViewTimeout)
			}
		})
	}
}

func TestTheFirstViewIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view, begun := &meshview.View{}, time.Now()
		got, err := View(func() *meshview.View {
			if time.Since(begun) < time.Second {
				return nil
			}
			return view
		}).Await(t.Context())
		if err != nil || got != view || time.Since(begun) != time.Second {
			t.Errorf("Await() = %v, %v after %s, want the first view, after %s", got, err, time.Since(begun), time.Second)
		}
	})
}

package restarts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sonde-mesh/sonde/controller/watch"
)

// journal records what a writer has sent.
type journal struct {
	mu  sync.Mutex
	all []string
}

func (j *journal) note(text string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.all = append(j.all, text)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.all, " ")
}

// write returns a write that journal records.
func (j *journal) write(text string, err error) func(context.Context) error {
	return func(context.Context) error { j.note(text); return err }
}

// runWriter runs a writer until the function that it returns is called.
func runWriter(t *testing.T) (w *writer, stop func()) {
	t.Helper()
	w = newWriter(slog.New(slog.DiscardHandler), nil, func() {})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { w.run(ctx); close(ended) }()
	return w, func() { cancel(); <-ended }
}

func idOf(c class, name string) writeID { return writeID{c, watch.Key{Name: name}} }

// Within a class, namespaces take turns, so that no namespace waits for all writes of another.
func TestWriterTakesTurns(t *testing.T) {
	w := newWriter(slog.New(slog.DiscardHandler), nil, func() {})
	for i := range 100 {
		w.put(writeID{classCondition, watch.Key{Namespace: "greedy", Name: strconv.Itoa(i)}}, nil)
	}
	for i := range 2 {
		w.put(writeID{classCondition, watch.Key{Namespace: "modest", Name: strconv.Itoa(i)}}, nil)
	}
	var got []string
	for range 5 {
		got = append(got, w.take().object.String())
	}
	if want := []string{"greedy/0", "modest/0", "greedy/1", "modest/1", "greedy/2"}; !slices.Equal(got, want) {
		t.Errorf("sent %q, want %q", got, want)
	}
}

// Writes are ordered by importance, then by age; of the writes with one ID only the newest is sent.
func TestWriterOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		w, stop := runWriter(t)
		defer stop()
		first := make(chan struct{})
		for i := range writesAtOnce { // so that the others wait
			w.put(idOf(classDelete, fmt.Sprint("busy", i)), func(context.Context) error { <-first; return nil })
		}
		synctest.Wait()
		w.put(idOf(classDelete, "a"), j.write("delete-a", nil))
		w.put(idOf(classCondition, "a"), j.write("condition-a-1", nil))
		w.put(idOf(classStatus, "b"), j.write("status-b", nil))
		w.put(idOf(classStatus, "a"), j.write("status-a", nil))
		w.put(idOf(classGrant, "a"), j.write("grant-a", nil))
		w.put(idOf(classGrant, "c"), j.write("grant-c", nil))
		w.put(idOf(classCondition, "a"), j.write("condition-a-2", nil))
		if !w.withdraw(idOf(classGrant, "c"), false) || w.withdraw(idOf(classGrant, "none"), true) || w.withdraw(idOf(classDelete, "busy0"), true) {
			t.Error("a write that does not wait is withdrawn, or a waiting one is not")
		}
		close(first)
		wait(time.Minute)
		// Two concurrent writes could arrive in any order, but not at this rate.
		if got := j.String(); got != "grant-a status-b status-a condition-a-2 delete-a" {
			t.Errorf("sent: %s", got)
		}
	})
}

// A write in flight is not sent a second time.
func TestWriterSendsOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		w, stop := runWriter(t)
		defer stop()
		release := make(chan struct{})
		id := idOf(classStatus, "a")
		w.put(id, func(context.Context) error { <-release; j.note("1"); return nil })
		synctest.Wait()
		w.put(id, j.write("2", nil))
		wait(time.Second)
		if !w.flies(id) || !w.waits(id) || j.String() != "" {
			t.Errorf("sent beside the previous write: %s", &j)
		}
		close(release)
		wait(time.Second)
		if !w.flies(id) {
			t.Error("a write is over before its result was taken, so it would be sent again")
		}
		if j.String() != "1 2" || len(w.takeResults()) != 2 || w.busy(id) {
			t.Errorf("sent: %s", &j)
		}
	})
}

// A grant whose creation is unconfirmed is sent again, and is withdrawn only if it is over. Other unconfirmed writes
// are left to the next round.
func TestWriterTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		w, stop := runWriter(t)
		defer stop()
		lost := errors.New("connection reset")
		w.put(idOf(classGrant, "a"), j.write("grant", lost))
		w.put(idOf(classStatus, "a"), j.write("status", lost))
		wait(100 * time.Millisecond)
		if w.withdraw(idOf(classGrant, "a"), false) {
			t.Error("a grant that may exist is withdrawn")
		}
		wait(10 * time.Second)
		if n := strings.Count(j.String(), "grant"); n < 9 || n > 12 || strings.Count(j.String(), "status") != 1 {
			t.Errorf("sent: %s", &j)
		}
		if !w.withdraw(idOf(classGrant, "a"), true) {
			t.Error("a grant that is over is not withdrawn")
		}
		refused := apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "b", nil)
		w.put(idOf(classGrant, "b"), j.write("refused", fmt.Errorf("send: %w", refused)))
		wait(time.Minute)
		results := w.takeResults()
		if strings.Count(j.String(), "refused") != 1 || len(results) != 1 || !apierrors.IsForbidden(results[0].err) {
			t.Errorf("sent: %s, results %v", &j, results)
		}
	})
}

// A writer that ends leaves no goroutine running, even with waiting writes.
func TestWriterEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, stop := runWriter(t)
		var ended []error
		var mu sync.Mutex
		for i := range 1000 {
			w.put(idOf(classDelete, strconv.Itoa(i)), func(ctx context.Context) error {
				<-ctx.Done()
				mu.Lock()
				defer mu.Unlock()
				ended = append(ended, ctx.Err())
				return ctx.Err()
			})
		}
		wait(time.Second)
		stop()
		if len(ended) != writesAtOnce || slices.ContainsFunc(ended, func(err error) bool { return !errors.Is(err, context.Canceled) }) {
			t.Errorf("requests ended with %v", ended)
		}
	})
}

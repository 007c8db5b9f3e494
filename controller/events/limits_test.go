package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"log/slog"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// counting returns limits with a log, and a function that counts how many of n events pass.
func counting() (passed func(n int, e func(i int) Event) int, log *bytes.Buffer) {
	log = &bytes.Buffer{}
	l := newLimits(slog.New(slog.NewTextHandler(log, nil)))
	return func(n int, e func(int) Event) (passed int) {
		for i := range n {
			one := e(i)
			if l.allow(&one) {
				passed++
			}
		}
		return passed
	}, log
}

func ofPod(uid, reason, action string) Event {
	return Event{Kind: "Pod", Namespace: "shop", Name: "web", UID: types.UID(uid), FieldPath: "spec.containers{app}", Reason: reason, Action: action}
}

// Events beyond the limit of the API server are dropped, and logged once a minute.
func TestEventsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		passed, log := counting()
		of := func(begin string) func(int) Event {
			return func(i int) Event { return ofPod(fmt.Sprint(begin, i), "ProbeFailed", "Timeout") }
		}
		if n := passed(eventsBurst+100, of("a")); n != eventsBurst || strings.Count(log.String(), "dropping events, too many in total\"") != 1 {
			t.Errorf("%d events, want %d, and the log says\n%s", n, eventsBurst, log)
		}
		<-time.After(2 * time.Second)
		if n := passed(100, of("b")); n != 2*eventsPerSecond {
			t.Errorf("%d events after two seconds, want %d", n, 2*eventsPerSecond)
		}
	})
}

// Events of one namespace do not displace events of others, and a namespace that is alone gets all of its events.
func TestNamespacesShareEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		passed, _ := counting()
		n := 0
		of := func(namespace string) func(int) Event {
			return func(int) Event {
				n++
				e := ofPod(fmt.Sprint("u", n), "ProbeFailed", "Timeout")
				e.Namespace = namespace
				return e
			}
		}
		greedy, modest := 0, 0
		for range 120 {
			greedy += passed(40, of("greedy"))
			modest += passed(1, of("modest"))
			<-time.After(time.Second)
		}
		if modest != 120 {
			t.Errorf("%d events of another namespace, want 120", modest)
		}
		if all := greedy + modest; all < 119*eventsPerSecond+eventsBurst || all > 120*eventsPerSecond+eventsBurst+eventsKept {
			t.Errorf("%d events in two minutes, want %d a second", all, eventsPerSecond)
		}
		if late := passed(namespaceBurst, of("late")); late != namespaceBurst {
			t.Errorf("%d events of a later namespace, want %d", late, namespaceBurst)
		}
	})
}

// An application that flaps for an hour costs one event a minute, and displaces no other event of its pod. This is
// not logged.
func TestRepeatedEventsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		passed, log := counting()
		flaps := func(int) Event { return ofPod("u", "ProbeFailed", "Timeout") }
		n := 0
		for range 3600 / 5 {
			n += passed(1, flaps)
			<-time.After(5 * time.Second)
		}
		if want := seriesBurst + 59; n != want {
			t.Errorf("%d events of a probe that fails each 5 seconds for an hour, want %d", n, want)
		}
		for _, other := range []Event{ofPod("u", "ProbeFailed", "ConnectionRefused"), ofPod("u", "JoinRefused", "JoinPermissionDenied"), ofPod("v", "ProbeFailed", "Timeout")} {
			if passed(1, func(int) Event { return other }) != 1 {
				t.Errorf("event %+v is dropped", other)
			}
		}
		if log.Len() > 0 {
			t.Errorf("the log says\n%s", log)
		}
	})
}

// A pod whose agent invents texts gets few events. It displaces neither events nor limiters of other pods.
func TestEventsOfOneObjectAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		passed, log := counting()
		flaps := func(int) Event { return ofPod("other", "ProbeFailed", "Timeout") }
		if n := passed(10, flaps); n != seriesBurst {
			t.Errorf("%d events of the other pod, want %d", n, seriesBurst)
		}
		madeUp := 0
		if n := passed(2*remembered, func(int) Event { madeUp++; return ofPod("bad", "ProbeFailed", strconv.Itoa(madeUp)) }); n != objectBurst {
			t.Errorf("%d events of one pod at once, want %d", n, objectBurst)
		}
		if n := strings.Count(log.String(), "dropping events, too many about one object"); n != 1 {
			t.Errorf("logged %d times, want once", n)
		}
		if n := passed(1, flaps); n != 0 {
			t.Error("a repeated event of the other pod is a new event")
		}
		<-time.After(time.Minute)
		if n := passed(100, func(int) Event { madeUp++; return ofPod("bad", "ProbeFailed", strconv.Itoa(madeUp)) }); n != int(time.Minute/objectEvery) {
			t.Errorf("%d events of the pod in a minute, want %d", n, time.Minute/objectEvery)
		}
		if n := passed(1, flaps); n != 1 {
			t.Error("a later event of the other pod is dropped")
		}
	})
}

// roundTripper is an API server without a network.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The maximum number of events, each about another pod, takes little memory, until client-go forgets the first one, or
// gives up writing them while the API server is unreachable.
func TestMemoryOfEvents(t *testing.T) {
	const limit = 40 << 20
	tests := map[string]struct {
		server roundTripper
		lasts  time.Duration
	}{
		"taken": {func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {r.Header.Get("Content-Type")}}, Body: r.Body, Request: r}, nil
		}, 15 * time.Minute},
		"away": {func(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") }, 3 * time.Minute},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api.invalid", Transport: tc.server, QPS: -1})
				if err != nil {
					t.Fatal(err)
				}
				r := New(client.EventsV1(), slog.New(slog.DiscardHandler))
				ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard())) // client-go logs each event that it cannot write
				done := make(chan error)
				go func() { done <- r.Run(ctx) }()
				synctest.Wait()
				before, pod := heap(), 0
				for range tc.lasts / (5 * time.Second) {
					for range 5*eventsPerSecond + 10 {
						pod++
						e := ofPod(fmt.Sprint("u", pod), "ProbeFailed", "Timeout")
						e.APIVersion, e.Name, e.Note = "v1", fmt.Sprint("web-", pod), strings.Repeat("x", maxNote)
						r.Record(e)
					}
					<-time.After(5 * time.Second)
					synctest.Wait()
				}
				if takes := max(heap(), before) - before; takes > limit {
					t.Errorf("%d events take %d MiB, want at most %d", pod, takes>>20, limit>>20)
				} else {
					t.Logf("%d events take %d MiB", pod, takes>>20)
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// heap returns the memory in use, in bytes.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

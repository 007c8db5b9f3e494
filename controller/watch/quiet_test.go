package watch

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// lines is a log, which may be read while it is written. It keeps errors.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (*lines) Init(klog.RuntimeInfo)            {}
func (*lines) Enabled(int) bool                 { return false }
func (*lines) Info(int, string, ...any)         {}
func (l *lines) WithValues(...any) klog.LogSink { return l }
func (l *lines) WithName(string) klog.LogSink   { return l }

func (l *lines) Error(err error, msg string, _ ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, msg+": "+err.Error())
}

func (l *lines) errors() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// context returns one whose log it is.
func (l *lines) context(ctx context.Context) context.Context {
	return klog.NewContext(ctx, klog.New(l))
}

// What cannot be read is a line when that begins, and then each five minutes.
func TestLossIsLoggedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		s := newStore(&journal{})
		logger := klog.FromContext(s.quiet(log.context(t.Context()))).WithName("reflector").WithValues("type", "x")
		fail := func(d time.Duration) {
			for range d / time.Second {
				s.note(errors.New("no such kind"))
				logger.Error(errors.New("no such kind"), "Failed to watch")
				<-time.After(time.Second)
			}
		}
		want := func(n int) {
			t.Helper()
			if got := len(log.errors()); got != n {
				t.Fatalf("%d lines, want %d", got, n)
			}
		}
		fail(complainEvery)
		want(1)
		fail(complainEvery)
		want(2)
		s.note(nil)
		fail(2 * time.Second)
		want(3)
		s.note(nil) // it comes and goes
		fail(complainAgain / 2)
		want(3)
		if s.Missing() == nil || s.Lost().Err == nil {
			t.Error("it is neither missing nor lost")
		}
	})
}

// roundTripper answers requests.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// withoutKind returns a client of an API server that does not have the kind. asked is called with each request.
func withoutKind(t *testing.T, asked func()) rest.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api", QPS: -1, Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		asked()
		return &http.Response{StatusCode: http.StatusNotFound, Request: r, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("no such kind"))}, nil
	})})
	if err != nil {
		t.Fatal(err)
	}
	return client.CoreV1().RESTClient()
}

// A kind that the API server does not have, as without its CustomResourceDefinition, is one line at the start.
func TestMissingKindIsOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests := 0
		s := newStore(&journal{})
		s.kind.Client = withoutKind(t, func() { requests++ })
		var log lines
		ctx, cancel := context.WithCancel(log.context(t.Context()))
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		time.Sleep(complainEvery - 1)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if least := int(complainEvery / (2 * backoffLast)); requests < least { // each back-off has up to as much again
			t.Errorf("%d requests in %s, want at least %d", requests, complainEvery, least)
		}
		if all := log.errors(); len(all) != 1 || !strings.Contains(all[0], "could not find the requested resource") {
			t.Errorf("lines %q, want one that says why", all)
		}
	})
}

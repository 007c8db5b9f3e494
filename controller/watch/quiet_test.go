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

// lines is a log of errors that is safe for concurrent use.
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

// context returns a context with l as its log.
func (l *lines) context(ctx context.Context) context.Context {
	return klog.NewContext(ctx, klog.New(l))
}

// A read failure is logged when it begins, and then every five minutes.
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
		s.note(nil) // the failure ends, and another one begins at once
		fail(complainAgain / 2)
		want(3)
		if s.Missing() == nil || s.Lost().Err == nil {
			t.Error("Missing() and Lost() report nothing")
		}
	})
}

// roundTripper answers requests.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// withoutKind returns a client of an API server without the kind. It calls asked for each request.
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

// A kind without its CustomResourceDefinition is logged once, at the start.
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
		if least := int(complainEvery / (2 * backoffLast)); requests < least { // jitter doubles a back-off at most
			t.Errorf("%d requests in %s, want at least %d", requests, complainEvery, least)
		}
		if all := log.errors(); len(all) != 1 || !strings.Contains(all[0], "could not find the requested resource") {
			t.Errorf("lines %q, want one with the reason", all)
		}
	})
}

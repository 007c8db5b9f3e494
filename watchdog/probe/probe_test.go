package probe

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/internal/testing/certificate"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/partition"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// apiServer serves objects in pages.
type apiServer struct {
	mu       sync.Mutex
	leases   []coordinationv1.Lease
	nodes    []corev1.Node
	requests []*http.Request
	// refuse handles requests whose path has this suffix instead.
	refuse map[string]func(w http.ResponseWriter)
}

// start returns a Probe of the server.
func (s *apiServer) start(t *testing.T) *Probe {
	t.Helper()
	return probeOf(t, s, rest.TLSClientConfig{Insecure: true})
}

// probeOf returns a Probe of a handler over TLS.
func probeOf(t *testing.T, handler http.Handler, client rest.TLSClientConfig) *Probe {
	t.Helper()
	secured, _ := certificate.Server(t, "api")
	p, err := New(&rest.Config{Host: "https://api", Dial: virtual.ServeHTTP(t, handler, secured), TLSClientConfig: client, BearerToken: "abc"}, NewBudget())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r)
	for path, refuse := range s.refuse {
		if strings.HasSuffix(r.URL.Path, path) {
			refuse(w)
			return
		}
	}
	first, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	page := func(n int) (last int, next metav1.ListMeta) {
		if last = min(n, first+limit); last < n {
			next.Continue = strconv.Itoa(last)
		}
		return last, next
	}
	var answer any
	switch r.URL.Path {
	case "/version":
		answer = map[string]string{"gitVersion": "v1.37.0"}
	case "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases":
		last, next := page(len(s.leases))
		answer = coordinationv1.LeaseList{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "LeaseList"}, ListMeta: next, Items: s.leases[first:last]}
	case "/api/v1/nodes":
		last, next := page(len(s.nodes))
		if !strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList") {
			answer = corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: next, Items: s.nodes[first:last]}
			break
		}
		list := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}, ListMeta: next}
		for _, n := range s.nodes[first:last] {
			list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: n.ObjectMeta})
		}
		answer = list
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// status responds with a status of the API server.
func status(code int, retryAfter string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		if retryAfter != "" {
			w.Header().Set("Retry-After", retryAfter)
		}
		http.Error(w, http.StatusText(code), code)
	}
}

func lease(node string, renewed *metav1.MicroTime) coordinationv1.Lease {
	return coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: coordinationv1.LeaseSpec{RenewTime: renewed}}
}

// full returns a server with more nodes and leases than one page, some of which are ignored.
func full(renewed metav1.MicroTime) *apiServer {
	s := &apiServer{leases: []coordinationv1.Lease{lease("a", &renewed), lease("new", nil)}}
	for i := range 2*maxPage + 1 {
		s.leases = append(s.leases, lease(fmt.Sprint("n", i), &renewed))
		s.nodes = append(s.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Labels: map[string]string{corev1.LabelTopologyZone: "z"}}})
	}
	now := metav1.Now()
	s.nodes = append(s.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "deleted", DeletionTimestamp: &now}}, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	for _, taint := range append(slices.Clone(goingTaints), "node.kubernetes.io/unschedulable") {
		s.nodes = append(s.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "t"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: taint}}}})
	}
	return s
}

func TestLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		renewed := metav1.NowMicro()
		p := full(renewed).start(t)
		at, leases, err := p.Leases(t.Context())
		if err != nil || len(leases) != 2*maxPage+2 || leases[0].Node != "a" || !leases[0].Renewed.Equal(renewed.Time) {
			t.Errorf("%d leases, the first is %+v, %v; want all that have a renewTime", len(leases), leases[:min(1, len(leases))], err)
		}
		if !at.Equal(time.Now()) {
			t.Errorf("read at %s, it is %s", at, time.Now())
		}
	})
}

func TestNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := full(metav1.NowMicro()).start(t)
		zones, err := p.Nodes(t.Context())
		if _, deleted := zones["deleted"]; err != nil || deleted || len(zones) != 2*maxPage+3 || zones["n7"] != "z" || zones["a"] != "" {
			t.Errorf("%d nodes, n7 in %q, deleted %t, %v; want all that are not being deleted", len(zones), zones["n7"], deleted, err)
		}
		going, err := p.Going(t.Context())
		if err != nil || len(going) != len(goingTaints) {
			t.Errorf("%q go, %v; want those with the taints of the autoscalers", going, err)
		}
	})
}

// Requests read from etcd, each on its own connection.
func TestRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := full(metav1.NowMicro())
		p := s.start(t)
		_, _, leases := p.Leases(t.Context())
		_, nodes := p.Nodes(t.Context())
		if err := errors.Join(p.APIServer(t.Context()), leases, nodes); err != nil || len(s.requests) != 7 {
			t.Errorf("%d requests, %v, want 1 and two lists of 3 pages", len(s.requests), err)
		}
		for _, r := range s.requests {
			if r.URL.Query().Has("resourceVersion") || !r.Close || r.Header.Get("Authorization") != "Bearer abc" {
				t.Errorf("%s: closes %t, authorization %q", r.URL, r.Close, r.Header.Get("Authorization"))
			}
		}
	})
}

// An error of any request fails the probe, including earlier reads. There are no retries.
func TestErrors(t *testing.T) {
	tests := map[string]struct {
		path   string
		refuse func(http.ResponseWriter)
		cause  partition.Cause
		after  time.Duration
	}{
		"version forbidden":       {"/version", status(http.StatusForbidden, ""), partition.Unreadable, 0},
		"version unauthorized":    {"/version", status(http.StatusUnauthorized, ""), partition.Unreadable, 0},
		"version throttled":       {"/version", status(http.StatusTooManyRequests, "7"), partition.Throttled, 7 * time.Second},
		"throttled, without time": {"/version", status(http.StatusTooManyRequests, ""), partition.Throttled, 0},
		"version fails":           {"/version", status(http.StatusInternalServerError, ""), partition.APIServerAway, 0},
		"unavailable":             {"/version", status(http.StatusServiceUnavailable, "1"), partition.APIServerAway, 0},
		"leases fail":             {"/leases", status(http.StatusInternalServerError, ""), partition.APIServerAway, 0},
		"leases throttled":        {"/leases", status(http.StatusTooManyRequests, "1"), partition.Throttled, time.Second},
		"leases forbidden":        {"/leases", status(http.StatusForbidden, ""), partition.Unreadable, 0},
		"nodes fail":              {"/nodes", status(http.StatusInternalServerError, ""), partition.APIServerAway, 0},
		"nodes throttled":         {"/nodes", status(http.StatusTooManyRequests, "3"), partition.Throttled, 3 * time.Second},
		"a page has gone":         {"/nodes", status(http.StatusGone, ""), partition.Unreadable, 0},
		"no answer": {"/version", func(w http.ResponseWriter) {
			c, _, _ := w.(http.Hijacker).Hijack() //nolint:forcetypeassert // of HTTP/1.1
			_ = c.Close()
		}, partition.APIServerAway, 0},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			s := &apiServer{refuse: map[string]func(http.ResponseWriter){tc.path: tc.refuse}}
			p := s.start(t)
			_, _, leases := p.Leases(t.Context())
			_, nodes := p.Nodes(t.Context())
			_, going := p.Going(t.Context())
			version := p.APIServer(t.Context())
			got, ok := errors.AsType[*Error](errors.Join(version, leases, nodes))
			if !ok || got.Cause != tc.cause || got.RetryAfter != tc.after {
				t.Errorf("%+v, want %s after %s", got, tc.cause, tc.after)
			}
			if (nodes == nil) != (going == nil) {
				t.Errorf("nodes %v, taints %v: want both or none", nodes, going)
			}
			asked := slices.DeleteFunc(slices.Clone(s.requests), func(r *http.Request) bool { return !strings.HasSuffix(r.URL.Path, tc.path) })
			if want := 1 + strings.Count(tc.path, "nodes"); len(asked) != want {
				t.Errorf("asked %d times, want %d", len(asked), want)
			}
		})
	}
}

// Errors of second pages also count.
func TestLaterPageFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		renewed := metav1.NowMicro()
		s := &apiServer{}
		for i := range maxPage + 1 {
			s.leases = append(s.leases, lease(strconv.Itoa(i), &renewed))
		}
		n := 0
		p := probeOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if n++; n == 2 {
				status(http.StatusGone, "")(w)
				return
			}
			s.ServeHTTP(w, r)
		}), rest.TLSClientConfig{Insecure: true})
		if _, all, err := p.Leases(t.Context()); err == nil || all != nil {
			t.Errorf("%d leases, %v, want an error", len(all), err)
		}
	})
}

// zeros is an endless response.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// An endless response is an error.
func TestAnswerIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &apiServer{refuse: map[string]func(http.ResponseWriter){"/leases": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.CopyN(w, zeros{}, 2*maxAnswer) // until the reader has disconnected
		}}}
		_, _, err := s.start(t).Leases(t.Context())
		if e, ok := errors.AsType[*Error](err); !ok || e.Cause != partition.Unreadable || !strings.Contains(err.Error(), "more than 8388608 bytes") {
			t.Errorf("Leases() = %v, want that the answer is too large", err)
		}
	})
}

// heavy returns a server whose nodes and leases have annotations of this size.
func heavy(nodes, bytes int) *apiServer {
	renewed := metav1.NowMicro()
	s := &apiServer{}
	annotations := map[string]string{"a": strings.Repeat("a", bytes)}
	for i := range nodes {
		l := lease(fmt.Sprint("n", i), &renewed)
		l.Annotations = annotations
		s.leases = append(s.leases, l)
		s.nodes = append(s.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: l.Name, Annotations: annotations}})
	}
	return s
}

// Pages get smaller until the responses are within the limit, for any budget taken by other clusters.
func TestPagesAreMadeSmaller(t *testing.T) {
	tests := map[string]struct {
		taken, nodes, bytes int
		err                 string
	}{
		"whole budget":                       {0, 100, 2_000, ""},
		"the others take all":                {largeAnswers, 100, 2_000, ""},
		"an object too large":                {0, 2, 64 << 10, "list nodes: the response has more than 65536 bytes"},
		"an object too large for the others": {largeAnswers, 2, 8 << 10, "list nodes: the response has more than 8192 bytes"},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			p := heavy(tc.nodes, tc.bytes).start(t)
			p.budget.largeBytes, p.budget.smallBytes = 64<<10, 8<<10
			for range tc.taken {
				p.budget.take()
			}
			zones, err := p.Nodes(t.Context())
			if tc.err != "" {
				if e, ok := errors.AsType[*Error](err); !ok || e.Cause != partition.Unreadable || err.Error() != tc.err {
					t.Errorf("%d nodes, %v, want unreadable: %s", len(zones), err, tc.err)
				}
				return
			}
			_, all, leases := p.Leases(t.Context())
			going, taints := p.Going(t.Context())
			if err := errors.Join(err, leases, taints); err != nil || len(zones) != tc.nodes || len(all) != tc.nodes || len(going) != 0 {
				t.Errorf("%d nodes, %d leases, %d going, %v", len(zones), len(all), len(going), err)
			}
			if len(p.budget.large) != tc.taken {
				t.Errorf("%d parts of the budget are taken, want %d", len(p.budget.large), tc.taken)
			}
		})
	}
}

// An endless list, or one with invalid names, is an error.
func TestEndlessLists(t *testing.T) {
	for name, tc := range map[string]struct {
		name func(i int) string
		want string
	}{
		"too many":        {strconv.Itoa, "list nodes: " + errTooMany.Error()},
		"too long a name": {func(int) string { return strings.Repeat("a", 300) }, "list nodes: " + errUnreadable.Error()},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			n := 0
			p := probeOf(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				list := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}, ListMeta: metav1.ListMeta{Continue: "more"}}
				for range maxPage {
					n++
					list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: tc.name(n)}})
				}
				w.Header().Set("Content-Type", "application/json")
				_ = json.NewEncoder(w).Encode(list)
			}), rest.TLSClientConfig{Insecure: true})
			zones, err := p.Nodes(t.Context())
			if e, ok := errors.AsType[*Error](err); !ok || e.Cause != partition.Unreadable || err.Error() != tc.want {
				t.Errorf("%d nodes, %v, want %s", len(zones), err, tc.want)
			}
		})
	}
}

// A server that is not an API server: the probe neither follows its redirects nor shows its text, and does not accept
// its version.
func TestAnswersOfOthers(t *testing.T) {
	const secret = "hunter2"
	body := func(code int, text string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, text)
		}
	}
	tests := map[string]struct {
		path   string
		answer func(http.ResponseWriter)
		cause  partition.Cause
		want   string
	}{
		"redirect": {"/version", func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://10.0.0.1/"+secret)
			w.WriteHeader(http.StatusTemporaryRedirect)
		}, partition.Unreadable, "get version of the API server: redirects are not followed"},
		"an error's text":      {"/version", body(http.StatusBadGateway, secret), partition.APIServerAway, "get version of the API server: HTTP 502 Bad Gateway"},
		"a status":             {"/leases", body(http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","code":403,"reason":"Forbidden","message":"`+secret+`"}`), partition.Unreadable, "list leases: HTTP 403 Forbidden"},
		"an invalid code":      {"/leases", body(http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","code":299,"reason":"`+secret+`"}`), partition.Unreadable, "list leases: HTTP 403 Forbidden"},
		"another object":       {"/nodes", body(http.StatusOK, `{"kind":"`+secret+`","apiVersion":"v1"}`), partition.Unreadable, "list nodes: " + errUnreadable.Error()},
		"no object":            {"/nodes", body(http.StatusOK, secret), partition.Unreadable, "list nodes: " + errUnreadable.Error()},
		"no version":           {"/version", body(http.StatusOK, `{"a":"`+secret+`"}`), partition.Unreadable, "get version of the API server: " + errNoVersion.Error()},
		"a version of no JSON": {"/version", body(http.StatusOK, secret), partition.Unreadable, "get version of the API server: " + errNoVersion.Error()},
		"created":              {"/version", body(http.StatusCreated, ""), partition.Unreadable, "get version of the API server: " + errNoVersion.Error()},
		"no HTTP": {"/version", func(w http.ResponseWriter) {
			c, _, _ := w.(http.Hijacker).Hijack() //nolint:forcetypeassert // of HTTP/1.1
			_, _ = io.WriteString(c, secret+"\r\n\r\n")
			_ = c.Close()
		}, partition.APIServerAway, "get version of the API server: " + errUnreadable.Error()},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			p := (&apiServer{refuse: map[string]func(http.ResponseWriter){tc.path: tc.answer}}).start(t)
			_, _, leases := p.Leases(t.Context())
			_, nodes := p.Nodes(t.Context())
			err := errors.Join(p.APIServer(t.Context()), leases, nodes)
			if e, ok := errors.AsType[*Error](err); !ok || e.Cause != tc.cause || err.Error() != tc.want {
				t.Errorf("%v (%+v), want %s: %s", err, e, tc.cause, tc.want)
			}
		})
	}
}

// An untrusted certificate shows that a server responds: the kubeconfig may be old, and the API server may be up.
func TestUntrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := probeOf(t, &apiServer{}, rest.TLSClientConfig{})
		e, ok := errors.AsType[*Error](p.APIServer(t.Context()))
		if !ok || e.Cause != partition.Unreadable || !strings.Contains(e.Error(), "failed to verify certificate") {
			t.Errorf("APIServer() = %v", e)
		}
	})
}

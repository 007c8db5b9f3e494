package restarts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
)

// longestAnswer is the longest response time of the API server, and longestWatch the longest delay of a
// watch.
const (
	longestAnswer = 2 * time.Second
	longestWatch  = 3 * time.Second
)

// transport is one replica's connection to the API server. It implements http.RoundTripper.
type transport struct {
	sim    *simulation
	server *apiServer
	name   string
	// ahead is how far the clock of the replica is ahead. The replica writes and reads times by
	// that clock.
	ahead time.Duration
	// oldServer supports no streaming lists.
	oldServer bool

	mu     sync.Mutex
	frozen chan struct{} // closed when the process continues; nil while it runs
	dead   bool
	broken chan struct{} // closed when all watches break
	trap   trap
}

// trap is a fault of the replica that writes the next grant.
type trap int

const (
	noTrap trap = iota
	freezeBefore
	killAfter
)

func (s *simulation) newTransport(name string, ahead time.Duration) *transport {
	return &transport{sim: s, server: s.api, name: name, ahead: ahead, oldServer: s.oldServer, broken: make(chan struct{})}
}

func (t *transport) config() *rest.Config {
	return &rest.Config{Host: "http://api", Transport: t, QPS: -1}
}

// freeze stops the process: its requests wait. thaw continues it.
func (t *transport) freeze() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.frozen == nil && !t.dead {
		t.frozen = make(chan struct{})
	}
}

func (t *transport) thaw() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.frozen != nil {
		close(t.frozen)
		t.frozen = nil
	}
}

// die ends the process: it sends nothing more.
func (t *transport) die() {
	t.mu.Lock()
	t.dead = true
	t.mu.Unlock()
	t.thaw()
	t.breakWatches()
}

func (t *transport) breakWatches() {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.broken)
	t.broken = make(chan struct{})
}

func (t *transport) state() (frozen <-chan struct{}, broken <-chan struct{}, dead bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.frozen, t.broken, t.dead
}

func (t *transport) set(w trap) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trap = w
}

func (t *transport) takeTrap() trap {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.trap
	t.trap = noTrap
	return w
}

var errAway = errors.New("connection refused")

// reach waits while the process is frozen, and returns an error while the API server is stopped.
func (t *transport) reach() error {
	frozen, _, dead := t.state()
	if frozen != nil {
		<-frozen
		_, _, dead = t.state()
	}
	if dead || t.sim.apiAway() {
		return errAway
	}
	return nil
}

// pause waits, and returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// RoundTrip implements http.RoundTripper. A request that the client has canceled may still take effect.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	p := parsePath(r.URL.Path)
	if r.Method == http.MethodGet {
		return t.read(r, p)
	}
	if err := t.reach(); err != nil {
		pause(r.Context(), 10*time.Millisecond)
		return nil, err
	}
	granting := p.resource == grants && r.Method == http.MethodPost
	what := noTrap
	if granting {
		what = t.takeTrap()
	}
	if what == freezeBefore {
		t.freeze()
		t.sim.frozeItself(t.name)
		if err := t.reach(); err != nil {
			return nil, err
		}
	}
	took, late := t.sim.latency(longestAnswer), t.sim.chance(2)
	if !pause(r.Context(), took) {
		if late { // it was already sent
			_, err := t.apply(r.Method, p, body)
			t.sim.Detail("%s of %s by %s is late: %v", r.Method, p.resource, t.name, err)
		}
		return nil, r.Context().Err()
	}
	if err := t.reach(); err != nil {
		return nil, err
	}
	data, err := t.apply(r.Method, p, body)
	if what == killAfter {
		t.sim.diesNow(t.name)
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	if t.sim.chance(30) {
		t.sim.Note("the answer to %s of %s %s is lost", t.name, r.Method, p.resource)
		return nil, io.ErrUnexpectedEOF
	}
	return t.answer(r, p, data, err)
}

// apply executes a request.
func (t *transport) apply(method string, p path, body []byte) ([]byte, error) {
	switch method {
	case http.MethodPost:
		return t.server.create(p.resource, shift(p.resource, body, t.ahead))
	case http.MethodPatch:
		return t.server.patch(p.resource, p.key, shift(p.resource, body, t.ahead))
	case http.MethodDelete:
		return t.server.remove(p.resource, p.key)
	}
	return nil, &statusError{405, metav1.StatusReasonMethodNotAllowed, method + " is not simulated"}
}

func (t *transport) read(r *http.Request, p path) (*http.Response, error) {
	if err := t.reach(); err != nil || !pause(r.Context(), t.sim.latency(longestAnswer)) || t.reach() != nil {
		pause(r.Context(), 10*time.Millisecond)
		return nil, errors.Join(errAway, r.Context().Err())
	}
	if p.key != "" {
		data, err := t.server.get(p.resource, p.key)
		return t.answer(r, p, data, err)
	}
	if _, known := kinds[p.resource]; !known {
		return t.answer(r, p, nil, notFound(p.resource, ""))
	}
	if q := r.URL.Query(); q.Get("watch") == "" {
		return t.list(r, p)
	} else {
		return t.watch(r, p, q)
	}
}

func (t *transport) list(r *http.Request, p path) (*http.Response, error) {
	all, version := t.server.all(p.resource)
	for i := range all {
		all[i] = t.shown(p.resource, all[i])
	}
	k := kinds[p.resource]
	list := fmt.Appendf(nil, `{"kind":"%sList","apiVersion":%q,"metadata":{"resourceVersion":"%d"},"items":[`, k.name, k.apiVersion, version)
	list = append(append(list, bytes.Join(all, []byte(","))...), "]}"...)
	return response(r, http.StatusOK, io.NopCloser(bytes.NewReader(list))), nil
}

// watch starts with all objects, or after a version.
func (t *transport) watch(r *http.Request, p path, q url.Values) (*http.Response, error) {
	w := &watchBody{transport: t, ctx: r.Context(), resource: p.resource}
	_, w.broken, _ = t.state()
	seconds, err := strconv.Atoi(q.Get("timeoutSeconds"))
	if err != nil {
		seconds = 300
	}
	w.ends = time.Now().Add(time.Duration(seconds) * time.Second)
	var version int
	if q.Get("sendInitialEvents") == "true" {
		if t.oldServer {
			return t.answer(r, p, nil, &statusError{422, metav1.StatusReasonInvalid, "sendInitialEvents is forbidden"})
		}
		version = w.begin()
	} else if version, err = strconv.Atoi(q.Get("resourceVersion")); err != nil {
		return nil, err
	}
	var ok bool
	if w.place, ok = t.server.place(version); !ok {
		return t.answer(r, p, nil, &statusError{410, metav1.StatusReasonExpired, "too old resource version"})
	}
	return response(r, http.StatusOK, w), nil
}

func (t *transport) answer(r *http.Request, p path, data []byte, err error) (*http.Response, error) {
	if refused, is := errors.AsType[*statusError](err); is {
		return response(r, refused.code, io.NopCloser(bytes.NewReader(refused.status()))), nil
	}
	return response(r, http.StatusOK, io.NopCloser(bytes.NewReader(t.shown(p.resource, data)))), err
}

func response(r *http.Request, code int, body io.ReadCloser) *http.Response {
	return &http.Response{
		Status: http.StatusText(code), StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Request: r, ContentLength: -1,
	}
}

// shown is an object as the replica reads it. In the variant without reservations, a leader reads grants as another
// workload's; in the variant without epochs, it reads the same epoch from all grants.
func (t *transport) shown(resource string, object []byte) []byte {
	if resource == grants && t.sim.variant != whole && len(object) > 0 {
		o := decode(object)
		switch t.sim.variant {
		case forgetful:
			setField(o, "Deployment/"+namespace+"/forgotten", "spec", "workload")
		case withoutEpochs:
			setField(o, int64(1)<<50, "spec", "epoch")
		}
		object = encode(o)
	}
	return shift(resource, object, -t.ahead)
}

// shift shifts the times of a grant, which are by the replica's clock.
func shift(resource string, object []byte, by time.Duration) []byte {
	if resource != grants || len(object) == 0 || by == 0 {
		return object
	}
	o := decode(object)
	for _, field := range [][]string{{"spec", "granted"}, {"status", "spent"}, {"status", "ended"}, {"status", "judged"}} {
		text, there, _ := unstructured.NestedString(o.Object, field...)
		if at, err := time.Parse(time.RFC3339Nano, text); there && err == nil {
			setField(o, at.Add(by).UTC().Format(metav1.RFC3339Micro), field...)
		}
	}
	return encode(o)
}

func setField(o *unstructured.Unstructured, v any, field ...string) {
	if err := unstructured.SetNestedField(o.Object, v, field...); err != nil {
		panic(err) // impossible: its parents are not strings
	}
}

// watchBody is the response to a watch. It implements io.ReadCloser.
type watchBody struct {
	*transport
	ctx      context.Context //nolint:containedctx // of the request
	resource string
	broken   <-chan struct{}
	ends     time.Time
	place    int
	due      time.Time // of the last event
	unread   []byte
}

// begin sends all objects, and returns the version of the list.
func (w *watchBody) begin() int {
	all, version := w.server.all(w.resource)
	for _, object := range all {
		w.tell("ADDED", object)
	}
	k := kinds[w.resource]
	w.tell("BOOKMARK", encode(map[string]any{"kind": k.name, "apiVersion": k.apiVersion, "metadata": map[string]any{
		"resourceVersion": strconv.Itoa(version), "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}}))
	return version
}

func (w *watchBody) tell(change string, object []byte) {
	w.unread = fmt.Appendf(w.unread, "{\"type\":%q,\"object\":%s}\n", change, w.shown(w.resource, object))
}

// Read implements io.Reader.
func (w *watchBody) Read(p []byte) (int, error) {
	for len(w.unread) == 0 {
		if err := w.await(); err != nil {
			return 0, err
		}
	}
	n := copy(p, w.unread)
	w.unread = w.unread[n:]
	return n, nil
}

// await waits for the next event, which is delayed.
func (w *watchBody) await() error {
	if err := w.reach(); err != nil {
		return err
	}
	e, next, is, changed := w.server.next(w.resource, w.place)
	until := w.ends
	if is {
		if due := e.at.Add(w.sim.latency(longestWatch)); due.After(w.due) {
			w.due = due
		}
		until = w.due
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-w.ctx.Done():
		return w.ctx.Err()
	case <-w.broken:
		return io.ErrUnexpectedEOF
	case <-changed: // nil while an event is pending
	case <-timer.C:
		if !is {
			return io.EOF
		}
		if err := w.reach(); err != nil {
			return err
		}
		w.place = next
		w.tell(e.kind, e.object)
	}
	return nil
}

// Close implements io.Closer.
func (w *watchBody) Close() error { return nil }

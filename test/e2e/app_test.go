//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/harness"
)

// app is the application in a pod, by its control port. See test/app/control.go.
type app struct {
	t       *testing.T
	address string
}

// app returns the application of a pod that has an address.
func (n *namespace) app(pod string) app {
	n.t.Helper()
	return app{n.t, mesh.JoinHostPort(n.pod(pod).Status.PodIP, portControl)}
}

// host returns the address of a pod in the form of a URL.
func (n *namespace) host(pod string) string {
	n.t.Helper()
	address := n.pod(pod).Status.PodIP
	if strings.Contains(address, ":") {
		return "[" + address + "]"
	}
	return address
}

// do sends a request to the control port, and decodes the response unless answer is nil.
func (a app) do(method, path string, query url.Values, answer any) {
	a.t.Helper()
	if err := a.try(method, path, query, answer); err != nil {
		a.t.Fatal(err)
	}
}

// waitPut changes the application as soon as it is reachable.
func (a app) waitPut(path string, query url.Values) {
	a.t.Helper()
	wait(a.t, "a change of the application by "+path, func() error { return a.try(http.MethodPut, path, query, nil) })
}

func (a app) try(method, path string, query url.Values, answer any) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.t.Context()), 20*time.Second)
	defer cancel()
	target := "http://" + a.address + path + "?" + query.Encode()
	r, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return err
	}
	got, err := control.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = got.Body.Close() }()
	body, err := io.ReadAll(got.Body)
	if err != nil {
		return err
	}
	if got.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %s", method, target, got.Status, body)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(body, answer)
}

// control is the client of control ports. It keeps no connections, because pods and addresses
// change.
var control = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// called is the result of one request.
type called struct {
	Status int
	Header http.Header
	Body   string
	Error  string
}

// answer decodes the application's description of the request.
func (c called) answer(t *testing.T) harness.Answer {
	t.Helper()
	var a harness.Answer
	if err := json.Unmarshal([]byte(c.Body), &a); c.Status != http.StatusOK || err != nil {
		t.Fatalf("the response is %+v, want one of the application", c)
	}
	return a
}

// call has the application send one HTTP request.
func (a app) call(format string, args ...any) called {
	a.t.Helper()
	c, err := a.tryCall(fmt.Sprintf(format, args...))
	if err != nil {
		a.t.Fatal(err)
	}
	return c
}

// tryCall is call for an application that may be too busy to respond.
func (a app) tryCall(target string) (c called, err error) {
	err = a.try(http.MethodGet, "/call", url.Values{"url": {target}}, &c)
	return c, err
}

// waitCall calls until the application at the URL responds.
func (a app) waitCall(format string, args ...any) harness.Answer {
	a.t.Helper()
	target := fmt.Sprintf(format, args...)
	var c called
	wait(a.t, "an answer of "+target, func() (err error) {
		if c, err = a.tryCall(target); err == nil && c.Status != http.StatusOK {
			return fmt.Errorf("it is %+v", c)
		}
		return err
	})
	return c.answer(a.t)
}

// raw has the application send a text on a connection to host:port, and read until the peer closes it.
func (a app) raw(at, text string, half bool) (c called) {
	a.t.Helper()
	a.do(http.MethodGet, "/raw", url.Values{"at": {at}, "send": {text}, "half": {strconv.FormatBool(half)}}, &c)
	return c
}

// load is a load that an application generates.
type load struct {
	app  app
	name string
}

// startLoad has the application generate a load of a kind (see newCaller in test/app), and waits for its first
// calls.
func (a app) startLoad(kind, target string) load {
	a.t.Helper()
	l := load{a, kind + " " + target}
	a.do(http.MethodPut, "/load", url.Values{"name": {l.name}, "kind": {kind}, "target": {target}}, nil)
	l.waitMore(5)
	return l
}

// report returns the result so far.
func (l load) report() harness.Report {
	l.app.t.Helper()
	var r harness.Report
	l.app.do(http.MethodGet, "/load", url.Values{"name": {l.name}}, &r)
	return r
}

// stop ends the load and returns the result.
func (l load) stop() harness.Report {
	l.app.t.Helper()
	var r harness.Report
	l.app.do(http.MethodDelete, "/load", url.Values{"name": {l.name}}, &r)
	return r
}

// waitMore waits until the load has made this many more calls.
func (l load) waitMore(calls int) {
	l.app.t.Helper()
	enough := l.report().Calls + calls
	wait(l.app.t, "calls of "+l.name, func() error {
		if r := l.report(); r.Calls < enough {
			return fmt.Errorf("%v of %d calls", r, enough)
		}
		return nil
	})
}

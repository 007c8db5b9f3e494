package redirect

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/sonde-mesh/sonde/internal/testing/redirecttest"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// Virtual addresses of services whose endpoints are on the host.
var keptAt = map[string]string{"http": "198.51.100.8:80", "tcp": "198.51.100.9:80"}

// sources returns further addresses of the pod: for a service with affinity, each is a caller.
func sources() []netip.Addr {
	var all []netip.Addr
	for i := range byte(8) {
		all = append(all, netip.AddrFrom4([4]byte{192, 0, 2, 20 + i}))
	}
	return all
}

func otherSources() []string {
	var prefixes []string
	for _, a := range sources() {
		prefixes = append(prefixes, a.String()+"/32")
	}
	return prefixes
}

// put writes a service of each protocol, with more fields.
func (w *pair) put(t *testing.T, fields string) {
	t.Helper()
	var endpoints []string
	for i := range 6 {
		endpoints = append(endpoints, fmt.Sprintf("{address: %s, port: %d, nodeName: node-1}", host4, 9101+i))
	}
	for protocol, at := range keptAt {
		must.Do(t, w.machine.Put("kept-"+protocol+".yaml", fmt.Sprintf("type: Service\nmesh: default\nname: kept-%s\nprotocol: %s\naddresses: ['%s']\n%s\nendpoints: [%s]\n",
			protocol, protocol, at, fields, strings.Join(endpoints, ", "))))
	}
}

// answerer calls from an address on a new connection, with a forwarded-for header like a proxy's, and returns the
// endpoint that responds.
func (w *pair) answerer(from netip.Addr, at, forwardedFor string) (string, error) {
	w.calls++
	conn, err := w.pod.Dial(redirecttest.Caller{User: application.User, From: from}, netip.MustParseAddrPort(at))
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: kept\r\nConnection: close\r\nX-Forwarded-For: "+forwardedFor+"\r\n\r\n"); err != nil {
		return "", err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	var said harness.Answer
	if err := json.NewDecoder(answer.Body).Decode(&said); err != nil {
		return "", fmt.Errorf("status %d: %w", answer.StatusCode, err)
	}
	return said.Instance, nil
}

// keepsToAnEndpoint calls services with affinity, which depends on the callers' own addresses, not on the
// forwarded-for header.
func (w *pair) keepsToAnEndpoint(t *testing.T) {
	t.Helper()
	for i := range 6 {
		w.host.Serve(t, 9101+i, func(conn net.Conn) {
			if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"instance\": \"%d\"}", i)
			}
		})
	}
	w.put(t, "sessionAffinity: ClientIP")
	for protocol, at := range keptAt {
		answers := map[string]bool{}
		for _, from := range sources() {
			must.Poll(t, "one endpoint to respond to"+from.String()+" over "+protocol, func(context.Context) error {
				var kept string
				for i := range 10 {
					now, err := w.answerer(from, at, fmt.Sprint("203.0.113.", i))
					switch {
					case err != nil:
						return err
					case i > 0 && now != kept:
						return fmt.Errorf("%s answers, and %s did", now, kept)
					}
					kept = now
				}
				answers[kept] = true
				return nil
			})
		}
		if len(answers) < 2 {
			t.Errorf("all callers over %s keep to %v", protocol, answers)
		}
	}
}

// staysOnItsNode calls services that first have no endpoint on the pod's node, and then have one.
func (w *pair) staysOnItsNode(t *testing.T) {
	t.Helper()
	w.put(t, "internalTrafficPolicy: Local")
	for protocol, at := range keptAt {
		must.Poll(t, "connections over "+protocol+" to be closed", func(context.Context) error {
			if now, err := w.answerer(netip.Addr{}, at, "203.0.113.1"); !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, syscall.ECONNRESET) {
				return fmt.Errorf("%q answers, error %w", now, err)
			}
			return nil
		})
	}
	w.declare(t, "node-1")
	for protocol, at := range keptAt {
		must.Poll(t, "an endpoint to answer over "+protocol, func(context.Context) error {
			_, err := w.answerer(netip.Addr{}, at, "203.0.113.1")
			return err
		})
	}
}

package trial

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// TestRun checks that the kubelet's requests show whether it discards errored probes. A trial is inconclusive if the
// kubelet did not probe, or did not treat the answer as Errored.
func TestRun(t *testing.T) {
	for name, tc := range map[string]struct {
		periods, times int // periods with requests, and requests in each
		agent          string
		ends           bool // then the kubelet ends the container
		want           error
	}{
		"it discards them":                  {periods, 3, "kube-probe/1.37", false, nil},
		"it ends the container at once":     {1, 3, "kube-probe/1.39", true, ErrCounted},
		"it ends the container in a while":  {periods - 1, 3, "kube-probe/1.39", true, ErrCounted},
		"it does not ask":                   {0, 0, "", false, ErrNotAsked},
		"it stops asking":                   {2, 3, "kube-probe/1.37", false, ErrNotAsked},
		"another one asks":                  {periods, 3, "curl/8", false, ErrNotAsked},
		"the container is ended before":     {0, 0, "", true, ErrNotAsked},
		"it takes them for something else":  {periods, 1, "kube-probe/1.37", false, ErrNotErrored},
		"a proxy asks, and it ends the pod": {periods, 3, "proxy", true, ErrNotAsked},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			network := virtual.NewNetwork()
			address := netip.MustParseAddr("192.0.2.1")
			l, err := network.Listen(t.Context(), "tcp", "192.0.2.1:9000")
			if err != nil {
				t.Fatal(err)
			}
			table := mesh.ProbeTable{{
				ID: "app-liveness", Container: "app", Type: mesh.ProbeLiveness, Guarded: true, TimeoutSeconds: 1, PeriodSeconds: 1, FailureThreshold: 1,
				HTTPGet: &mesh.HTTPGetProbe{Path: "/", Port: 1},
			}}
			dial := network.DialFrom(address.String())
			ctx, end := context.WithCancel(t.Context())
			defer end()
			ended := make(chan error, 1)
			go func() {
				ended <- Run(ctx, Options{Probes: probe.Options{Table: table, PodIP: address, Port: 9000, Dial: dial}, Listener: l, Within: time.Minute})
			}()
			client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
			for range tc.periods {
				for range tc.times {
					ask(t, client, "http://192.0.2.1:9000"+table[0].VirtualPath(), tc.agent)
				}
				<-time.After(time.Second)
			}
			synctest.Wait()
			if tc.ends {
				end()
			}
			if err := <-ended; !errors.Is(err, tc.want) {
				t.Errorf("Run() = %v, want %v", err, tc.want)
			}
		})
	}
}

// ask sends a request as a kubelet does, unless the trial has ended.
func ask(t *testing.T, client *http.Client, url, agent string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("User-Agent", agent)
	request.Header.Set(mesh.ProbeHeader, "app-liveness")
	answer, err := client.Do(request)
	if errors.As(err, new(*net.OpError)) || errors.Is(err, io.EOF) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if _, err := io.ReadAll(answer.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the answer is %s, %v, want a truncated one", answer.Status, err)
	}
}

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// shortLife is the shortest certificate lifetime that a Mesh allows.
const shortLife = 10 * time.Second

// TestRenewal has all certificates renewed several times under load, which opens new connections all the
// time.
func TestRenewal(t *testing.T) {
	t.Parallel()
	m := newMesh(t, shortLife)
	proxies := must.Add(t, m,
		harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b", "t"}},
		harness.ProxyOptions{Name: "b-1", Service: "b"}, harness.ProxyOptions{Name: "t-1", Service: "t", Protocol: "tcp"})
	a, b := proxies[0], proxies[1]
	synced(t, proxies...)
	load := startLoad(t, append(httpCallers(a, "b"), tcpCallers(a, "t")...)...)

	const renewals = 3
	seen := map[string]map[string]bool{}
	must.Poll(t, "renewals in each Envoy", func(ctx context.Context) error {
		var amiss error
		for _, p := range proxies {
			all, err := certificates(ctx, p)
			if err != nil {
				return err
			}
			if seen[p.Name] == nil {
				seen[p.Name] = map[string]bool{}
			}
			maps.Copy(seen[p.Name], all.leaves)
			if n := len(seen[p.Name]); n <= renewals {
				amiss = errors.Join(amiss, fmt.Errorf("%s has had %d certificates, want %d", p.Name, n, renewals+1))
			}
		}
		return amiss
	})
	for name, serials := range seen {
		t.Logf("%s has had %d certificates: %s", name, len(serials), slices.Sorted(maps.Keys(serials)))
	}
	// Each of the three agents and three Envoys has reconnected at least twice before its certificate
	// expired.
	now := metrics(t, m)
	if n := now[`sonde_identity_connections_closed_total{reason="expiring"}`]; n < 12 {
		t.Errorf("%v connections were ended before their certificate was, want at least 12", n)
	}
	if n := now[`sonde_identity_connections_closed_total{reason="handshake"}`]; n > 0 {
		t.Errorf("%v connections to the control plane were refused", n)
	}
	must.Poll(t, "three streams", func(context.Context) error {
		if n := metrics(t, m)["sonde_xds_streams"]; n != 3 {
			return fmt.Errorf("%v are open", n)
		}
		return nil
	})
	must.Do(t, b.SetReady(false)) // the streams still work
	must.Do(t, b.SetReady(true))
	synced(t, proxies...)
	must.Hold(t, load)
}

// inUse has the serial numbers of Envoy's own certificates and of its trusted CAs.
type inUse struct{ leaves, authorities map[string]bool }

// certificates gets the certificates in use from Envoy.
func certificates(ctx context.Context, p *harness.Proxy) (inUse, error) {
	body, err := p.EnvoyGet(ctx, "/certs")
	if err != nil {
		return inUse{}, err
	}
	type certificate struct {
		Serial string `json:"serial_number"`
	}
	var answer struct {
		Certificates []struct {
			CA    []certificate `json:"ca_cert"`
			Chain []certificate `json:"cert_chain"`
		} `json:"certificates"`
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		return inUse{}, fmt.Errorf("decode the certificates of %s: %w", p.Name, err)
	}
	all := inUse{map[string]bool{}, map[string]bool{}}
	for _, c := range answer.Certificates {
		for _, authority := range c.CA {
			all.authorities[authority.Serial] = true
		}
		for _, leaf := range c.Chain {
			all.leaves[leaf.Serial] = true
		}
	}
	return all, nil
}

// TestCertificatesExpire stops the control plane until all certificates have expired. Then new connections are
// refused, and work again after the control plane has restarted.
func TestCertificatesExpire(t *testing.T) {
	t.Parallel()
	m := newMesh(t, shortLife)
	proxies := must.Add(t, m,
		harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"t"}},
		harness.ProxyOptions{Name: "t-1", Service: "t", Protocol: "tcp"})
	at := proxies[0].Outbounds["t"]
	caller := harness.NewTCPCaller(at, false)
	call := func(ctx context.Context) error {
		_, err := caller.Call(ctx)
		return err
	}
	must.Poll(t, "a call", call)
	m.ControlPlane.Kill()
	must.Poll(t, "calls to be refused", func(ctx context.Context) error {
		if call(ctx) == nil {
			return errors.New("a call succeeded")
		}
		return nil
	})
	for _, p := range proxies {
		must.Poll(t, p.Name+" to be unready", func(ctx context.Context) error {
			_, err := m.Get(ctx, "http://"+p.Admin+"/readyz")
			if statusOf(err).Code != 503 {
				return fmt.Errorf("its readiness is %w, want 503", err)
			}
			return nil
		})
	}
	must.Do(t, m.StartControlPlane(t.Context()))
	synced(t, proxies...)
	for _, p := range proxies {
		must.Do(t, p.WaitReady(t.Context()))
	}
	load := startLoad(t, tcpCallers(proxies[0], "t")...)
	must.Make(t, load, 20)
	must.Hold(t, load)
}

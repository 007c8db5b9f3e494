package session

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

const (
	// askListenersEvery is how often Envoy is asked for its listeners. It is short, because a pod waits for the answer.
	askListenersEvery = time.Second
	// listenersTimeout bounds one query.
	listenersTimeout = 5 * time.Second
	// maxListeners bounds the answer, in bytes.
	maxListeners = 4 << 20
)

// followListeners queries Envoy regularly for its listeners while some are missing or unknown, and the replica with its
// ADS stream may be disconnected: pods must become ready even while replicas cannot reach each other.
func (s *Sessions) followListeners(sess *session) {
	unreached, known := s.unreached(sess.peer.ID())
	unbound, _ := s.unbound(sess.peer.ID())
	switch ask := (!known || unreached != "" || unbound != "") && len(s.o.Peers.Missing()) > 0; {
	case !ask:
		sess.stopAskingListeners()
	case sess.unreached == nil:
		sess.unreached = time.NewTicker(askListenersEvery)
	}
}

func (sess *session) listenersTick() <-chan time.Time {
	if sess.unreached == nil {
		return nil
	}
	return sess.unreached.C
}

func (sess *session) stopAskingListeners() {
	if sess.unreached != nil {
		sess.unreached.Stop()
		sess.unreached = nil
	}
}

// askListeners queries Envoy for its listeners, and records them. The next tick retries a query that was rejected
// because of too many others.
func (s *Sessions) askListeners(sess *session) {
	s.running.Go(func() {
		ctx, cancel := context.WithTimeout(sess.stream.Context(), listenersTimeout)
		defer cancel()
		var answer bytes.Buffer
		err := s.Query(ctx, sess.peer.ID(), mesh.ViewListeners, func(part []byte) error {
			if answer.Len()+len(part) > maxListeners {
				return fmt.Errorf("more than %d bytes", maxListeners)
			}
			answer.Write(part)
			return nil
		})
		var active []netip.AddrPort
		if err == nil {
			active, err = readListeners(answer.Bytes())
		}
		if err != nil {
			s.o.Logger.DebugContext(ctx, "failed to query the listeners of an Envoy",
				"mesh", sess.peer.Mesh, "proxy", sess.peer.Dataplane, "err", err)
			return
		}
		inbounds, outbounds := s.wanted(sess.peer.ID(), active)
		s.o.Observed.ObserveAsked(sess.peer.ID(), inbounds, outbounds)
		sess.wake.Set()
	})
}

// wanted returns which of these addresses are inbounds of the Dataplane, and which are outbounds.
func (s *Sessions) wanted(id mesh.ID, active []netip.AddrPort) (inbounds, outbounds []netip.AddrPort) {
	d := s.o.View().Dataplane(id)
	if d == nil {
		return nil, nil
	}
	of := func(want []netip.AddrPort) []netip.AddrPort {
		return slices.DeleteFunc(want, func(at netip.AddrPort) bool { return !slices.Contains(active, at) })
	}
	return of(listenersOf(d)), of(d.OutboundListeners())
}

// readListeners returns the addresses in Envoy's response to /listeners?format=json.
// Source: https://www.envoyproxy.io/docs/envoy/latest/api-v3/admin/v3/listeners.proto
func readListeners(answer []byte) ([]netip.AddrPort, error) {
	type address struct {
		Socket struct {
			Address string `json:"address"`
			Port    uint16 `json:"port_value"`
		} `json:"socket_address"`
	}
	var listeners struct {
		Statuses []struct {
			Local address   `json:"local_address"`
			More  []address `json:"additional_local_addresses"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal(answer, &listeners); err != nil {
		return nil, fmt.Errorf("decode the listeners of Envoy: %w", err)
	}
	var all []netip.AddrPort
	for _, l := range listeners.Statuses {
		for _, a := range append(l.More, l.Local) {
			if ip, err := netip.ParseAddr(a.Socket.Address); err == nil { // not a pipe
				all = append(all, netip.AddrPortFrom(ip, a.Socket.Port))
			}
		}
	}
	return all, nil
}

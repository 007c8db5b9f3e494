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
	// askListenersEvery is how often an Envoy is asked for its listeners: a pod waits for them.
	askListenersEvery = time.Second
	// listenersTimeout of one question.
	listenersTimeout = 5 * time.Second
	// maxListeners limits the answer, in bytes.
	maxListeners = 4 << 20
)

// followListeners has Envoy be asked for its listeners while it is not known that it has all, and the replica that has its ADS stream may be one
// of those that are not heard: a pod must get ready while replicas are cut off from each other.
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

// askListeners asks Envoy for its listeners, and records them. A question that is refused, since others are asked, is asked again.
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
			s.o.Logger.DebugContext(ctx, "listeners of an Envoy not known", "mesh", sess.peer.Mesh, "proxy", sess.peer.Dataplane, "err", err)
			return
		}
		inbounds, outbounds := s.wanted(sess.peer.ID(), active)
		s.o.Observed.ObserveAsked(sess.peer.ID(), inbounds, outbounds)
		sess.wake.Set()
	})
}

// wanted returns which of the addresses are those at which the proxy should listen, for inbounds and for its application.
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

// readListeners returns the addresses in Envoy's answer to /listeners?format=json.
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
		return nil, fmt.Errorf("read the listeners of Envoy: %w", err)
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

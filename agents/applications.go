package agents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// notReported is why an inbound is not ready whose agent has said nothing of its application yet.
const notReported = "the agent has not reported its application yet"

// noVerdict begins why an inbound is not ready whose agent says that it cannot tell.
const noVerdict = "application probe without a verdict: "

// waits reports whether an inbound with that reason waits for the first verdict.
func waits(reason string) bool { return reason == notReported || strings.HasPrefix(reason, noVerdict) }

// applications are the inbounds whose application cannot take traffic, with the reason, by proxy. All others count as those that can. It
// is kept in the storage, since agents only say what changes.
type applications struct {
	records directory
	observe func(mesh.ID, func(*mesh.Observation))
	log     *slog.Logger

	writing sync.Mutex // held while one record is written

	mu         sync.Mutex // not held while something is written, since endpoints change under it
	notServing map[mesh.ID]map[netip.AddrPort]string
}

func newApplications(records directory, observe func(mesh.ID, func(*mesh.Observation)), log *slog.Logger) *applications {
	return &applications{records: records, observe: observe, log: log, notServing: map[mesh.ID]map[netip.AddrPort]string{}}
}

// load restores what was known before the restart. A record that cannot be read is forgotten: the agent says it again.
func (a *applications) load() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	ids, err := a.records.all()
	for _, id := range ids {
		reasons := map[netip.AddrPort]string{}
		data, readErr := a.records.data(id)
		if readErr == nil && json.Unmarshal(data, &reasons) != nil {
			readErr = mesh.ExplainJSON("", data, &reasons)
		}
		if readErr != nil {
			meshName, name := mesh.SplitID(id)
			a.log.Warn("record of applications not read, the proxy's inbounds count as ready until its agent reports them", "mesh", meshName, "proxy", name, "err", readErr)
			continue
		}
		a.notServing[id] = reasons
		a.pass(id)
	}
	return err
}

// update changes what is known of a proxy, passes it to the view's builder, and writes it. An error says that it is not written: it
// holds until the control plane restarts.
func (a *applications) update(id mesh.ID, change func(reasons map[netip.AddrPort]string)) error {
	if !a.change(id, change) {
		return nil
	}
	a.writing.Lock()
	defer a.writing.Unlock()
	if err := a.write(id, a.of(id)); err != nil { // the newest, which may be a later one than that of this change
		return fmt.Errorf("write %s of proxy %s: %w", a.records.name, id, err)
	}
	return nil
}

// change changes what is known of a proxy, and passes it on. It returns whether anything is different.
func (a *applications) change(id mesh.ID, change func(reasons map[netip.AddrPort]string)) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.notServing[id]
	now := map[netip.AddrPort]string{}
	maps.Copy(now, before)
	change(now)
	if maps.Equal(before, now) {
		return false
	}
	if len(now) == 0 {
		delete(a.notServing, id)
	} else {
		a.notServing[id] = now
	}
	a.pass(id)
	return true
}

func (a *applications) write(id mesh.ID, reasons map[netip.AddrPort]string) error {
	if len(reasons) == 0 {
		return a.records.remove(id)
	}
	data, err := json.Marshal(reasons)
	if err != nil {
		return err
	}
	return a.records.writeData(id, data)
}

// pass passes on what is known of a proxy. mu is held, so that no earlier state comes after a later one.
func (a *applications) pass(id mesh.ID) {
	addresses := mesh.MakeAddresses(slices.Collect(maps.Keys(a.notServing[id])))
	a.observe(id, func(o *mesh.Observation) { o.NotServing = addresses })
}

// of returns the inbounds of a proxy whose application cannot take traffic, with the reasons.
func (a *applications) of(id mesh.ID) map[netip.AddrPort]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.notServing[id] // it is replaced, never changed
}

// proxies returns those with an application that cannot take traffic.
func (a *applications) proxies() []mesh.ID {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.notServing))
}

// expectApplications records that a proxy which has never joined has said nothing of its applications yet, so that its endpoints wait
// for that.
func (s *Server) expectApplications(d *mesh.Dataplane) error {
	if s.observed.of(d.ID()).Joined {
		return nil
	}
	return s.awaitReport(d)
}

// awaitReport makes the inbounds of d with a serviceProbe wait for the next report of its agent.
func (s *Server) awaitReport(d *mesh.Dataplane) error {
	return s.applications.update(d.ID(), func(reasons map[netip.AddrPort]string) {
		for at := range probedInbounds(d) {
			reasons[at] = notReported
		}
	})
}

// startAgain makes the inbounds of a proxy that has drained wait for a report: its application may have ended as it did.
func (s *Server) startAgain(sess *session, draining bool) {
	id := sess.peer.ID()
	d := dataplaneOf(s.o.View(), id)
	if draining || d == nil || !s.observed.of(id).Draining {
		return
	}
	s.logUnkept(sess.stream.Context(), id, s.awaitReport(d))
}

// probedInbounds returns the inbounds of d that have a serviceProbe, by address.
func probedInbounds(d *mesh.Dataplane) map[netip.AddrPort]*mesh.Inbound {
	all := map[netip.AddrPort]*mesh.Inbound{}
	if d == nil {
		return all
	}
	for i := range d.Spec.Networking.Inbound {
		in := &d.Spec.Networking.Inbound[i]
		if at := d.InboundAddress(in); d.Probed(in) && at.IsValid() {
			all[at] = in
		}
	}
	return all
}

// followDataplane adapts what is known of the applications of a proxy to its Dataplane, before and after a change. What has no probe any
// more is forgotten. A new inbound with a probe waits for its first report; one that was meant to serve and has got a probe serves on until
// the probe says otherwise: else a probe that is added to all replicas of a service would take out all of them at once.
func (s *Server) followDataplane(before, after *mesh.Dataplane) {
	probed := probedInbounds(after)
	known := map[netip.AddrPort]bool{}
	if before != nil {
		for in := range before.Spec.Networking.ActiveInbounds() {
			if before.Probed(in) || in.DeclaredReady() {
				known[before.InboundAddress(in)] = true
			}
		}
	}
	id, forgotten := after.ID(), false
	reports := before != nil && s.observed.of(id).Joined && s.mayReport(id)
	err := s.applications.update(id, func(reasons map[netip.AddrPort]string) {
		for at := range probed {
			if reports && !known[at] {
				reasons[at] = notReported
			}
		}
		all := len(reasons)
		maps.DeleteFunc(reasons, func(at netip.AddrPort, _ string) bool { return probed[at] == nil })
		forgotten = len(reasons) < all
	})
	if before == nil || forgotten {
		s.askAgain(id)
	}
	s.logUnkept(context.Background(), id, err)
}

// askAgain makes the session of a proxy, if it has one, send the ServiceProbes again, and so the agent report all: what it has said while
// its Dataplane, or a probe, was not there has been ignored.
func (s *Server) askAgain(id mesh.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sess := s.sessions[id]; sess != nil {
		sess.askAgain = true
	}
}

// takeAskAgain reports whether askAgain was called.
func (s *Server) takeAskAgain(sess *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	again := sess.askAgain
	sess.askAgain = false
	return again
}

// forgetApplications forgets what is known of proxies that are gone: without a Dataplane, a session and a valid certificate.
func (s *Server) forgetApplications() error {
	v := s.o.View()
	if v == nil {
		return nil
	}
	var errs []error
	for _, id := range s.applications.proxies() {
		if _, p := v.Proxy(id); p != nil || s.connected(id) || s.o.Authority.HasCertificate(id) {
			continue
		}
		errs = append(errs, s.forgetApplicationsOf(id))
	}
	return errors.Join(errs...)
}

func (s *Server) forgetApplicationsOf(id mesh.ID) error {
	return s.applications.update(id, func(reasons map[netip.AddrPort]string) { clear(reasons) })
}

// NotServing returns for people why applications of a proxy cannot take traffic, by the address of the inbound. The result must not be
// changed.
func (s *Server) NotServing(id mesh.ID) map[netip.AddrPort]string { return s.applications.of(id) }

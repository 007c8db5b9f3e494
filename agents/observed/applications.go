package observed

import (
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

// report is what is known of the applications of a proxy: those that are not in it can take traffic.
type report struct {
	known   bool
	order   Order // of the session that has reported it, zero if none has
	reasons map[netip.AddrPort]string
}

// applications are the inbounds whose application cannot take traffic, with the reason, by proxy. All others count as those that can. It
// is kept in the storage, since agents only say what changes.
type applications struct {
	records directory
	// newest returns what all replicas know of a proxy, of which this one knows own. It must not call the applications.
	newest  func(id mesh.ID, own report) report
	observe func(mesh.ID, func(*facts))
	log     *slog.Logger

	writing sync.Mutex // held while one record is written

	mu      sync.Mutex // not held while something is written, since endpoints change under it
	reports map[mesh.ID]report
}

func newApplications(records directory, newest func(mesh.ID, report) report, observe func(mesh.ID, func(*facts)), log *slog.Logger) *applications {
	return &applications{records: records, newest: newest, observe: observe, log: log, reports: map[mesh.ID]report{}}
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
		a.reports[id] = report{known: true, reasons: reasons}
		a.pass(id)
	}
	return err
}

// update changes what is known of a proxy, passes it to the view's builder, and writes it. session is the order of the session that has
// reported it; without one it is left to the replica that knows the newest. An error says that it is not written: it holds until the control
// plane restarts.
func (a *applications) update(id mesh.ID, session Order, change func(reasons map[netip.AddrPort]string)) error {
	if !a.change(id, session, change) {
		return nil
	}
	return a.record(id)
}

func (a *applications) record(id mesh.ID) error {
	a.writing.Lock()
	defer a.writing.Unlock()
	if err := a.write(id, a.of(id)); err != nil { // the newest, which may be a later one than that of this change
		return fmt.Errorf("write %s of proxy %s: %w", a.records.name, id, err)
	}
	return nil
}

// change changes what is known of a proxy, and passes it on. It returns whether anything is different.
func (a *applications) change(id mesh.ID, session Order, change func(reasons map[netip.AddrPort]string)) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	own := a.reports[id]
	newest := a.newest(id, own)
	now := report{known: true, order: session, reasons: map[netip.AddrPort]string{}}
	maps.Copy(now.reasons, newest.reasons)
	change(now.reasons)
	if session == (Order{}) {
		if maps.Equal(newest.reasons, now.reasons) || newest.order != own.order {
			return false
		}
		now.order = own.order
	}
	if own.known && now.order == own.order && maps.Equal(own.reasons, now.reasons) {
		return false
	}
	a.reports[id] = now
	a.pass(id)
	return true
}

// drop forgets what is known of a proxy.
func (a *applications) drop(id mesh.ID) error {
	a.mu.Lock()
	known := a.reports[id].known
	if known {
		delete(a.reports, id)
		a.pass(id)
	}
	a.mu.Unlock()
	if !known {
		return nil
	}
	return a.record(id)
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
	r := a.reports[id]
	addresses := mesh.MakeAddresses(slices.Collect(maps.Keys(r.reasons)))
	a.observe(id, func(f *facts) { f.NotServing, f.applications, f.reported = addresses, r.known, r.order })
}

// own returns what this replica knows of the applications of a proxy.
func (a *applications) own(id mesh.ID) report {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reports[id] // its map is replaced, never changed
}

// of returns the inbounds of a proxy whose application cannot take traffic, with the reasons, as far as this replica knows.
func (a *applications) of(id mesh.ID) map[netip.AddrPort]string { return a.own(id).reasons }

// forget forgets the proxies that are gone.
func (a *applications) forget(gone func(mesh.ID) bool) error {
	a.mu.Lock()
	ids := slices.Collect(maps.Keys(a.reports))
	a.mu.Unlock()
	var errs []error
	for _, id := range ids {
		if gone(id) {
			errs = append(errs, a.drop(id))
		}
	}
	return errors.Join(errs...)
}

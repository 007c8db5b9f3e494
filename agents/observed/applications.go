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

// forget forgets proxies that are gone.
func (a *applications) forget(gone func(mesh.ID) bool) error {
	var errs []error
	for _, id := range a.proxies() {
		if gone(id) {
			errs = append(errs, a.update(id, func(reasons map[netip.AddrPort]string) { clear(reasons) }))
		}
	}
	return errors.Join(errs...)
}

package agentv1

import (
	"fmt"
	"math"
	"net/netip"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

// Limits of a Plaintext, so that sums do not overflow.
const (
	// MaxTally bounds each count, and MaxOpen the open connections.
	MaxTally = math.MaxUint64 >> 24
	MaxOpen  = math.MaxUint32 >> 12
	// MaxAgo bounds the age of a connection or request.
	MaxAgo = 10 * 365 * 24 * time.Hour
)

// CheckPlaintext returns an error for an invalid Plaintext, which names the field.
func CheckPlaintext(m *Plaintext) error {
	if n := len(m.GetInbounds()); n > MaxReported {
		return fmt.Errorf("inbounds: %d, must be at most %d", n, MaxReported)
	}
	for _, in := range m.GetInbounds() {
		if in.GetPort() > math.MaxUint16 {
			return fmt.Errorf("inbounds.port: %d, must be at most %d", in.GetPort(), math.MaxUint16)
		}
		if n := len(in.GetSources()); n > MaxReported {
			return fmt.Errorf("inbounds.sources: %d of port %d, must be at most %d", n, in.GetPort(), MaxReported)
		}
		for _, source := range in.GetSources() {
			if a, err := netip.ParseAddr(source.GetAddress()); err != nil || a.Zone() != "" {
				return fmt.Errorf("inbounds.sources.address: %.50q of port %d, must be an IP address without a zone",
					source.GetAddress(), in.GetPort())
			}
			if source.GetTally() == nil {
				return fmt.Errorf("inbounds.sources.tally: of %.50q is missing", source.GetAddress())
			}
			if err := checkTally("inbounds.sources.tally", source.GetTally()); err != nil {
				return err
			}
		}
		if err := checkTally("inbounds.others", in.GetOthers()); err != nil {
			return err
		}
		if err := checkTally("inbounds.probes", in.GetProbes()); err != nil {
			return err
		}
	}
	return nil
}

func checkTally(field string, t *PlaintextTally) error {
	if t.GetCount() > MaxTally {
		return fmt.Errorf("%s.count: %d, must be at most %d", field, t.GetCount(), uint64(MaxTally))
	}
	if t.GetOpen() > MaxOpen {
		return fmt.Errorf("%s.open: %d, must be at most %d", field, t.GetOpen(), MaxOpen)
	}
	if err := checkAgo(field+".first", t.GetFirst()); err != nil {
		return err
	}
	return checkAgo(field+".last", t.GetLast())
}

func checkAgo(field string, d *durationpb.Duration) error {
	if d != nil && (!d.IsValid() || d.AsDuration() < 0 || d.AsDuration() > MaxAgo) {
		return fmt.Errorf("%s: %v, must be a duration from 0s to %s", field, d, MaxAgo)
	}
	return nil
}

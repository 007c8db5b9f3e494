package agentv1_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

func TestCheckPlaintext(t *testing.T) {
	tally := func() *agentv1.PlaintextTally {
		return &agentv1.PlaintextTally{Count: 1, First: durationpb.New(time.Minute), Last: durationpb.New(time.Second)}
	}
	source := func() *agentv1.PlaintextSource { return &agentv1.PlaintextSource{Address: "10.0.0.1", Tally: tally()} }
	tests := map[string]struct {
		change func(m *agentv1.Plaintext, in *agentv1.PlaintextInbound)
		want   string
	}{
		"as it should be": {func(*agentv1.Plaintext, *agentv1.PlaintextInbound) {}, ""},
		"a newer kind":    {func(_ *agentv1.Plaintext, in *agentv1.PlaintextInbound) { in.Kind = 77 }, ""},
		"a negative time": {func(_ *agentv1.Plaintext, in *agentv1.PlaintextInbound) { in.Others.Last = durationpb.New(-1) }, "inbounds.others.last: nanos:-1, must be a duration from 0s to 87600h0m0s"},
		"300 years":       {func(_ *agentv1.Plaintext, in *agentv1.PlaintextInbound) { in.Others.First = durationpb.New(1<<63 - 1) }, "inbounds.others.first: "},
		"no time": {func(_ *agentv1.Plaintext, in *agentv1.PlaintextInbound) {
			in.Others.First = &durationpb.Duration{Seconds: 1 << 60}
		}, "inbounds.others.first: "},
		"a port":           {func(_ *agentv1.Plaintext, in *agentv1.PlaintextInbound) { in.Port = 65536 }, "inbounds.port: 65536, must be at most 65535"},
		"an address":       {func(_ *agentv1.Plaintext, in *agentv1.PlaintextInbound) { in.Sources[0].Address = "web-1" }, `inbounds.sources.address: "web-1" of port 80, must be an IP address without a zone`},
		"a zone":           {func(_ *agentv1.Plaintext, in *agentv1.PlaintextInbound) { in.Sources[0].Address = "fe80::1%eth0" }, `"fe80::1%eth0" of port 80, must be`},
		"many open":        {func(_ *agentv1.Plaintext, in *agentv1.PlaintextInbound) { in.Others.Open = 1 << 31 }, "inbounds.others.open: 2147483648, must be at most 1048575"},
		"no tally":         {func(_ *agentv1.Plaintext, in *agentv1.PlaintextInbound) { in.Sources[0].Tally = nil }, `inbounds.sources.tally: of "10.0.0.1" is missing`},
		"a huge count":     {func(_ *agentv1.Plaintext, in *agentv1.PlaintextInbound) { in.Others.Count = 1 << 63 }, "inbounds.others.count: 9223372036854775808, must be at most 1099511627775"},
		"a time of probes": {func(_ *agentv1.Plaintext, in *agentv1.PlaintextInbound) { in.Probes.Last = durationpb.New(-time.Hour) }, "inbounds.probes.last: "},
		"too many inbounds": {func(m *agentv1.Plaintext, in *agentv1.PlaintextInbound) {
			for range agentv1.MaxReported {
				m.Inbounds = append(m.Inbounds, in)
			}
		}, "inbounds: 21, must be at most 20"},
		"too many sources": {func(_ *agentv1.Plaintext, in *agentv1.PlaintextInbound) {
			for range agentv1.MaxReported {
				in.Sources = append(in.Sources, source())
			}
		}, "inbounds.sources: 21 of port 80, must be at most 20"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			in := &agentv1.PlaintextInbound{Port: 80, Sources: []*agentv1.PlaintextSource{source()}, Others: tally(), Probes: tally()}
			m := &agentv1.Plaintext{Inbounds: []*agentv1.PlaintextInbound{in}}
			tc.change(m, in)
			err := agentv1.CheckPlaintext(m)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("CheckPlaintext() = %v, want %q", err, tc.want)
			}
		})
	}
}

package facts

import (
	"encoding/json"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// Applications are the inbounds whose application cannot take traffic, with the reason. The applications of other
// inbounds count as ready. They are stored, since agents only report changes.
var Applications = Kind[*peerv1.Applications]{
	Name:  "applications",
	Field: func(m *peerv1.Proxy) **peerv1.Applications { return &m.Applications },
	Check: func(b *Bounds, m *peerv1.Applications) {
		b.reasons("proxy.applications.not_serving", m.GetNotServing())
	},
	Same: func(a, b *peerv1.Applications) bool { return maps.Equal(a.GetNotServing(), b.GetNotServing()) },
	Tell: func(m *peerv1.Applications, _ time.Duration) *peerv1.Applications {
		return &peerv1.Applications{Order: m.GetOrder(), NotServing: cutReasons(m.GetNotServing())}
	},
	Observe: func(o *mesh.Observation, m *peerv1.Applications) {
		o.NotServing = addressesOf(slices.Collect(maps.Keys(m.GetNotServing())), o.NotServing)
	},
	Keep: &Format[*peerv1.Applications]{
		Marshal: func(m *peerv1.Applications) ([]byte, error) {
			if len(m.GetNotServing()) == 0 {
				return nil, nil
			}
			return json.Marshal(m.GetNotServing())
		},
		Unmarshal: func(data []byte) (*peerv1.Applications, error) {
			reasons := map[netip.AddrPort]string{}
			if json.Unmarshal(data, &reasons) != nil {
				return nil, mesh.ExplainJSON("", data, &reasons)
			}
			return &peerv1.Applications{Order: Order{}.Proto(), NotServing: Texts(reasons)}, nil
		},
		Unread: func(log *slog.Logger, err error) {
			log.Warn("failed to read the stored state of a proxy's applications, its inbounds count as ready until its agent reports",
				"err", err)
		},
	},
}

// Reasons returns texts by address. The addresses were checked when the message arrived.
func Reasons(m map[string]string) map[netip.AddrPort]string {
	all := make(map[netip.AddrPort]string, len(m))
	for text, reason := range m {
		if at, err := netip.ParseAddrPort(text); err == nil {
			all[at] = reason
		}
	}
	return all
}

// Texts is the reverse of Reasons.
func Texts(reasons map[netip.AddrPort]string) map[string]string {
	all := make(map[string]string, len(reasons))
	for at, reason := range reasons {
		all[at.String()] = reason
	}
	return all
}

// cutReasons shortens reasons to what other replicas accept.
func cutReasons(reasons map[string]string) map[string]string {
	all := make(map[string]string, len(reasons))
	for at, reason := range reasons {
		all[at] = cut.Text(reason, agentv1.MaxReason)
	}
	return all
}

// addressesOf parses addresses. It reuses before if it is equal, since there may be thousands that rarely change.
func addressesOf(texts []string, before mesh.Addresses) mesh.Addresses {
	if strings.Join(texts, ",") == string(before) {
		return before
	}
	all := make([]netip.AddrPort, 0, len(texts))
	for _, text := range texts {
		if at, err := netip.ParseAddrPort(text); err == nil {
			all = append(all, at)
		}
	}
	return mesh.MakeAddresses(all)
}

package replicas

import (
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/facts"
)

// maxAuthorities limits the CAs that a replica reports.
const maxAuthorities = 1000

// checkMessage validates a message. The error is a gRPC status that names the field.
func checkMessage(m *peerv1.ReportMessage) error {
	var b facts.Bounds
	switch m := m.GetMessage().(type) {
	case *peerv1.ReportMessage_Proxy:
		b.Err = facts.CheckProxy(m.Proxy)
	case *peerv1.ReportMessage_Forgotten:
		b.ID("forgotten", m.Forgotten)
	case *peerv1.ReportMessage_Replica:
		checkReplica(&b, m.Replica)
	case *peerv1.ReportMessage_Freeze:
		checkFreeze(&b, m.Freeze)
	}
	if b.Err != nil {
		return status.Error(codes.InvalidArgument, b.Err.Error())
	}
	return nil
}

func checkReplica(b *facts.Bounds, m *peerv1.Replica) {
	b.Count("replica.authorities", len(m.GetAuthorities()), maxAuthorities)
	all := m.GetAuthorities()
	if a := m.GetServingCa(); a != nil {
		all = append(slices.Clone(all), a)
	}
	for _, a := range all {
		b.Text("replica.authorities", a.GetMesh(), a.GetStep(), a.GetSigningCa())
		if a.GetBundleEpoch() <= 0 {
			b.Refuse("replica.authorities.bundle_epoch", a.GetBundleEpoch(), "must be at least 1")
		}
	}
}

package caller_test

import (
	"bytes"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/grpc/peer"

	"github.com/sonde-mesh/sonde/admin/caller"
)

func TestLog(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort("10.0.0.2:1"))})
	caller.Log(caller.With(ctx, "system:serviceaccount:shop:ci"), logger).InfoContext(ctx, "drain requested", "proxy", "web-1")
	caller.Log(t.Context(), logger).InfoContext(ctx, "in memory")
	for _, want := range []string{
		`msg="drain requested" peer=10.0.0.2:1 caller=system:serviceaccount:shop:ci proxy=web-1`, `msg="in memory" peer="" caller=""`,
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has %q, want %q", log.String(), want)
		}
	}
}

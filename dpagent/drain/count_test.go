package drain

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	tests := map[string]struct {
		stats string
		want  active
	}{
		"nothing": {},
		"an idle HTTP connection is not open": {
			stats: "http.inbound_80.downstream_cx_active: 1\nhttp.inbound_80.downstream_rq_active: 0\n" +
				"listener.inbound_80.downstream_cx_active: 1\nlistener.inbound_80.worker_0.downstream_cx_active: 1\n",
		},
		"a request is": {
			stats: "http.inbound_80.downstream_cx_active: 2\nhttp.inbound_80.downstream_rq_active: 1\n" +
				"listener.inbound_80.downstream_cx_active: 2\n" +
				"cluster.inbound_80.upstream_rq_active: 1\ncluster.inbound_80.upstream_rq_pending_active: 0\n",
			want: active{inboundRequests: 1},
		},
		"a request that waits for its application is, too": {
			stats: "http.inbound_80.downstream_rq_active: 1\ncluster.inbound_80.upstream_rq_pending_active: 1\n",
			want:  active{inboundRequests: 1},
		},
		"a request whose application has exited is not": {
			stats: "http.inbound_80.downstream_cx_active: 1\nhttp.inbound_80.downstream_rq_active: 1\n" +
				"listener.inbound_80.downstream_cx_active: 1\n" +
				"cluster.inbound_80.upstream_rq_active: 0\ncluster.inbound_80.upstream_rq_pending_active: 0\n",
		},
		"an answer that its client has not read": {
			stats: "http.inbound_80.downstream_cx_active: 1\nhttp.inbound_80.downstream_rq_active: 0\n" +
				"listener.inbound_80.downstream_cx_active: 1\nhttp.inbound_80.downstream_cx_tx_bytes_buffered: 100\n",
			want: active{unread: 100},
		},
		"TCP beside HTTP on one capture listener": {
			stats: "http.inbound_80.downstream_cx_active: 2\nhttp.inbound_80.downstream_rq_active: 0\n" +
				"listener.inbound_capture.downstream_cx_active: 5\n",
			want: active{inboundConnections: 3},
		},
		"outbound counts only in all": {
			stats: "http.outbound_a.b.downstream_rq_active: 2\nhttp.outbound_a.b.downstream_cx_active: 2\n" +
				"listener.outbound_a.b.downstream_cx_active: 2\nlistener.outbound_db.downstream_cx_active: 4\n" +
				"cluster.a.b.upstream_rq_active: 2\ncluster.db.upstream_rq_active: 4\ncluster.control_plane.upstream_rq_active: 1\n",
			want: active{outboundRequests: 2, outboundConnections: 4},
		},
		"a connection whose first bytes are awaited": {
			stats: "listener.inbound_80.downstream_pre_cx_active: 1\n",
			want:  active{inboundConnections: 1},
		},
		"the request itself is not counted": {
			stats: "http.admin.downstream_rq_active: 1\nhttp.admin.downstream_cx_active: 1\nlistener.admin.downstream_cx_active: 1\n" +
				"listener.admin.main_thread.downstream_cx_active: 1\n" +
				"http.readiness.downstream_rq_active: 1\nhttp.readiness.downstream_cx_active: 1\nlistener.readiness.downstream_cx_active: 1\n" +
				"http.inbound_readiness.downstream_rq_active: 1\nhttp.inbound_readiness.downstream_cx_active: 1\n" +
				"listener.inbound_capture.downstream_cx_active: 1\ncluster.inbound_readiness.upstream_rq_active: 1\n",
		},
		"inconsistent gauges": {
			stats: "http.inbound_80.downstream_cx_active: 2\nlistener.inbound_80.downstream_cx_active: 1\n",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parse([]byte(tc.stats))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(active{})); diff != "" {
				t.Errorf("parse() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseRefusesWhatItDoesNotKnow(t *testing.T) {
	for _, stats := range []string{"<html>\n", "listener.a.downstream_cx_active: many\n", "listener: 1\n"} {
		if got, err := parse([]byte(stats)); err == nil {
			t.Errorf("parse(%q) = %v, want an error", stats, got)
		}
	}
}

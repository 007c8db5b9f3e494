package plaintext

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	logsv1 "go.opentelemetry.io/proto/otlp/logs/v1"
	resourcev1 "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

func newCounter() *Counter {
	return New(Options{Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
}

func text(key, value string) *commonv1.KeyValue {
	return &commonv1.KeyValue{Key: key, Value: &commonv1.AnyValue{Value: &commonv1.AnyValue_StringValue{StringValue: value}}}
}

// message is a message of Envoy's access log: LogsData has the fields of an ExportLogsServiceRequest.
func message(log string, records ...[]*commonv1.KeyValue) *logsv1.LogsData {
	scope := &logsv1.ScopeLogs{}
	for _, attributes := range records {
		scope.LogRecords = append(scope.LogRecords, &logsv1.LogRecord{TimeUnixNano: 1, Attributes: attributes})
	}
	return &logsv1.LogsData{ResourceLogs: []*logsv1.ResourceLogs{{
		Resource: &resourcev1.Resource{Attributes: []*commonv1.KeyValue{text("other", "x"), text(mesh.RecordsLog, log)}}, ScopeLogs: []*logsv1.ScopeLogs{scope},
	}}}
}

func request(ip, agent, of string) []*commonv1.KeyValue {
	return []*commonv1.KeyValue{text(mesh.RecordType, of), text(mesh.RecordSource, ip), text(mesh.RecordPort, "8080"), text(mesh.RecordAgent, agent)}
}

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestDecode encodes messages with OpenTelemetry's own types.
func TestDecode(t *testing.T) {
	data := marshal(t, message("requests",
		request("10.1.0.1", "curl/8.0.1", "DownstreamStart"), request("::ffff:10.1.0.2", "kube-probe/", "DownstreamStart"), request("fd00::1", "-", "DownstreamPeriodic"),
		[]*commonv1.KeyValue{
			text(mesh.RecordSource, "fe80::1%eth0"), text(mesh.RecordPort, "65535"), text(mesh.RecordReceived, "17"), text(mesh.RecordConnection, "18446744073709551615"), text("unknown", "x"),
		}, []*commonv1.KeyValue{text(mesh.RecordSource, "10.1.0.1"), text(mesh.RecordConnection, "-"), text(mesh.RecordReceived, "-")}))
	var b batch
	if err := b.decode(data); err != nil {
		t.Fatal(err)
	}
	want := batch{log: "requests", records: []record{
		{source: netip.MustParseAddr("10.1.0.1"), port: 8080},
		{source: netip.MustParseAddr("10.1.0.2"), port: 8080, kubelet: true},
		{source: netip.MustParseAddr("fd00::1"), port: 8080, goesOn: true},
		{source: netip.MustParseAddr("fe80::1"), port: 65535, received: 17, connection: 1<<64 - 1},
		{source: netip.MustParseAddr("10.1.0.1")},
	}}
	if diff := cmp.Diff(want, b, cmp.AllowUnexported(batch{}, record{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("decode() (-want +got):\n%s", diff)
	}
	if err := b.decode(data[:len(data)-3]); err == nil {
		t.Error("a truncated message is decoded")
	}
	source := text(mesh.RecordSource, "10.1.0.1")
	for want, attributes := range map[string][]*commonv1.KeyValue{
		"a record has no source":          {},
		`source of a record: "localhost"`: {text(mesh.RecordSource, "localhost")},
		`port of a record: "65536"`:       {source, text(mesh.RecordPort, "65536")},
		`port of a record: "NaN"`:         {source, text(mesh.RecordPort, "NaN")},
		`received of a record: "-1"`:      {source, text(mesh.RecordReceived, "-1")},
		`connection of a record: "x"`:     {source, text(mesh.RecordConnection, "x")},
	} {
		if err := new(batch).decode(marshal(t, message("requests", attributes))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want %q", attributes, err, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(marshal(f, message("requests", request("10.1.0.1", "curl/8.0.1", "DownstreamStart"))))
	f.Fuzz(func(t *testing.T, data []byte) {
		var b batch
		if b.decode(data) == nil {
			for _, r := range b.records {
				if !r.source.IsValid() || r.port > 0xffff {
					t.Errorf("record %+v", r)
				}
			}
		}
	})
}

func records(n int, change func(int, *record)) []record {
	all := make([]record, n)
	for i := range all {
		all[i] = record{source: netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}), port: 8080, received: 1}
		change(i, &all[i])
	}
	return all
}

// The kept state is bounded, whatever clients do, and the sum loses nothing.
func TestFlood(t *testing.T) {
	c := newCounter()
	steady := netip.MustParseAddr("10.9.9.9")
	for i := range 10_000 {
		c.add(logs[mesh.RecordsConnections], records(2, func(j int, r *record) {
			if r.source = netip.AddrFrom4([4]byte{10, 3, byte(i >> 8), byte(i)}); j == 1 && i%50 == 0 {
				r.source = steady
			}
		}))
		c.add(logs[mesh.RecordsNoInbound], records(1, func(_ int, r *record) { r.port = uint32(i + 1) }))
	}
	report := c.Report()
	if n := len(report.GetInbounds()); n > agentv1.MaxReported {
		t.Errorf("%d inbounds", n)
	}
	if err := agentv1.CheckPlaintext(report); err != nil {
		t.Error(err)
	}
	sums := map[Kind]uint64{}
	var steadyCount uint64
	for _, in := range report.GetInbounds() {
		for _, s := range in.GetSources() {
			sums[in.GetKind()] += s.GetTally().GetCount()
			if s.GetAddress() == steady.String() {
				steadyCount = s.GetTally().GetCount()
			}
		}
		sums[in.GetKind()] += in.GetOthers().GetCount()
	}
	want := map[Kind]uint64{agentv1.PlaintextInbound_PLAINTEXT: 20_000, agentv1.PlaintextInbound_NO_INBOUND: 10_000}
	if diff := cmp.Diff(want, sums); diff != "" {
		t.Errorf("sums (-want +got):\n%s", diff)
	}
	if steadyCount != 200 {
		t.Errorf("the steady client is counted %d times, want 200", steadyCount)
	}
	if size := proto.Size(report); size > 32<<10 {
		t.Errorf("the report has %d bytes", size)
	}
}

// A report has the open connections, and the counts with their time.
func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter()
		from := netip.MustParseAddr("10.1.0.1")
		add := func(r record) {
			r.source, r.port = from, 5432
			c.add(logs[mesh.RecordsConnections], []record{r})
		}
		want := func(inbounds ...*agentv1.PlaintextInbound) {
			t.Helper()
			if diff := cmp.Diff(inbounds, c.Report().GetInbounds(), protocmp.Transform()); diff != "" {
				t.Errorf("report (-want +got):\n%s", diff)
			}
		}
		tally := func(count uint64, open uint32, first, last time.Duration) *agentv1.PlaintextInbound {
			return &agentv1.PlaintextInbound{Port: 5432, Sources: []*agentv1.PlaintextSource{{
				Address: "10.1.0.1", Tally: &agentv1.PlaintextTally{Count: count, Open: open, First: durationpb.New(first), Last: durationpb.New(last)},
			}}}
		}
		add(record{}) // a connection without data
		want()
		add(record{received: 6})
		want(tally(1, 0, 0, 0))
		<-time.After(time.Second)
		for connection := range uint64(2) {
			add(record{received: 6, goesOn: true, connection: connection})
		}
		want(tally(1, 2, time.Second, 0))
		<-time.After(mesh.RecordsInterval - time.Second) // the next record may come a little earlier
		add(record{received: 6, goesOn: true, connection: 0})
		add(record{received: 6, connection: 1})
		want(tally(2, 1, 30*time.Second, 0))
		<-time.After(2 * mesh.RecordsInterval)
		want(tally(2, 1, 90*time.Second, 60*time.Second))
		<-time.After(mesh.RecordsInterval) // the record of its end was lost
		want(tally(2, 0, 120*time.Second, 90*time.Second))
	})
}

// A client may open as many connections as Envoy accepts.
func TestOpenConnectionsAreBounded(t *testing.T) {
	c := newCounter()
	c.add(logs[mesh.RecordsConnections], records(2*maxOpen, func(i int, r *record) {
		r.goesOn, r.connection = true, uint64(i)
	}))
	if len(c.open) != maxOpen {
		t.Errorf("%d open connections are kept, want %d", len(c.open), maxOpen)
	}
	var open uint32
	for _, in := range c.Report().GetInbounds() {
		for _, s := range in.GetSources() {
			open += s.GetTally().GetOpen()
		}
		open += in.GetOthers().GetOpen()
	}
	if open != maxOpen {
		t.Errorf("%d open connections are reported, want %d", open, maxOpen)
	}
	c.add(logs[mesh.RecordsConnections], records(2*maxOpen, func(i int, r *record) { r.connection = uint64(i) }))
	if len(c.open) != 0 {
		t.Errorf("%d connections are still open", len(c.open))
	}
}

// page is an Envoy that returns a page of statistics.
type page string

func (p page) Get(context.Context, string) ([]byte, error) { return []byte(p), nil }
func (page) Running() error                                { return nil }

// line is a counter in Envoy's format.
func line(of, value string) string {
	return "access_logs.open_telemetry_access_log." + of + ".logs_dropped: " + value + "\n"
}

// Lost records count as others, once, even if Envoy restarts.
func TestDropped(t *testing.T) {
	c := newCounter()
	read := func(text string) error { return c.readDropped(t.Context(), page(text)) }
	for _, text := range []string{
		line("requests.inbound_8080", "1000"), // while no agent ran
		line("requests.inbound_8080", "1004") + line("no_inbound_connections", "2"),
		line("requests.inbound_8080", "1004") + line("no_inbound_connections", "2") + line("tls_connections.inbound_443", "0"),
		line("requests.inbound_8080", "3"), // Envoy has restarted
		line("requests.inbound_8080", "4") + line("connections.inbound_8080", "1"),
	} {
		if err := read(text); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, in := range c.Report().GetInbounds() {
		got = append(got, fmt.Sprintf("%d %s %t %d", in.GetPort(), in.GetKind(), in.GetRequests(), in.GetOthers().GetCount()))
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"0 NO_INBOUND false 2", "8080 PLAINTEXT false 1", "8080 PLAINTEXT true 1008"}, got); diff != "" {
		t.Errorf("lost (-want +got):\n%s", diff)
	}
	if n := testutil.ToFloat64(c.lost); n != 1011 {
		t.Errorf("%v are lost, want 1011", n)
	}
	for text, want := range map[string]string{
		line("requests.inbound_8080", "NaN"):                                        "must be a counter and a number",
		line("requests.inbound_8080", "-1"):                                         "must be a counter and a number",
		line("requests.inbound_8080", "1e300"):                                      "must be a counter and a number",
		line("requests.inbound_8080", "18446744073709551616"):                       "must be a counter and a number",
		line("requests.inbound_8080", "18446744073709551615"):                       "access_logs.open_telemetry_access_log.requests.inbound_8080.logs_dropped: 18446744073709551615 after 4: growth is too large",
		line("requests.inbound_80800", "1"):                                         "must be a counter of records",
		line("requests", "1"):                                                       "must be a counter of records",
		line("other.inbound_80", "1"):                                               "must be a counter of records",
		"access_logs.open_telemetry_access_log.requests.inbound_80.logs_written: 1": "must be a counter of records",
		"server.uptime: 1\n":                                                        "must be a counter of records",
		"plaintext\n":                                                               "must be a counter and a number",
	} {
		if err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// unread is an Envoy that does not answer. It counts requests.
type unread struct{ asked int }

func (u *unread) Get(context.Context, string) ([]byte, error) {
	u.asked++
	return nil, errors.New("no answer")
}
func (*unread) Running() error { return nil }

// idle is an Envoy that has counted nothing. It counts requests.
type idle struct{ asked int }

func (i *idle) Get(context.Context, string) ([]byte, error) {
	i.asked++
	return nil, nil
}
func (*idle) Running() error { return nil }

// Envoy's counters are read seldom without records, and once a minute with records.
func TestHowOftenCountersAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := func(e Envoy, c *Counter, d time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			c.Run(ctx, e)
		}
		var quiet idle
		run(&quiet, newCounter(), time.Hour+time.Second)
		if quiet.asked > 7 {
			t.Errorf("an Envoy without plaintext gets %d requests in an hour", quiet.asked)
		}
		busy, c := &idle{}, newCounter()
		for range 10 {
			c.add(logs[mesh.RecordsRequests], records(100, func(int, *record) {}))
			run(busy, c, time.Minute+time.Second)
		}
		if busy.asked != 10 {
			t.Errorf("an Envoy with plaintext gets %d requests in ten minutes", busy.asked)
		}
		failing, c := &unread{}, newCounter()
		run(failing, c, 10*time.Minute+time.Second)
		if n := testutil.ToFloat64(c.failed); failing.asked != 10 || n != 10 {
			t.Errorf("an Envoy that does not answer gets %d requests in ten minutes, of which %v failed", failing.asked, n)
		}
	})
}

// TestServe sends an access log over the socket, as Envoy does.
func TestServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter()
		network := virtual.NewNetwork()
		l, err := network.Listen(t.Context(), "unix", mesh.SocketRecords)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Serve(ctx, l) }()
		dial := func(ctx context.Context, at string) (net.Conn, error) {
			return network.DialFrom("127.0.0.1")(ctx, "unix", at)
		}
		conn, err := grpc.NewClient("passthrough:///"+mesh.SocketRecords, grpc.WithContextDialer(dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		export := func(m *logsv1.LogsData) error {
			return conn.Invoke(ctx, "/opentelemetry.proto.collector.logs.v1.LogsService/Export", m, &logsv1.LogsData{})
		}
		for range 3 {
			if err := export(message(mesh.RecordsRequests, request("10.1.0.1", "curl/8.0.1", "DownstreamStart"))); err != nil {
				t.Fatal(err)
			}
			<-c.Due()
		}
		if got := c.Report().GetInbounds()[0].GetSources()[0].GetTally().GetCount(); got != 3 {
			t.Errorf("%d requests are counted, want 3", got)
		}
		if err := export(message("other")); err == nil || !strings.Contains(err.Error(), `unknown access log "other"`) {
			t.Errorf("an unknown access log: %v", err)
		}
		if err := export(message(mesh.RecordsRequests, nil)); err == nil || !strings.Contains(err.Error(), "a record has no source") {
			t.Errorf("an invalid record: %v", err)
		}
		var many [][]*commonv1.KeyValue
		for range 2000 {
			many = append(many, request("10.1.0.1", "curl/8.0.1", "DownstreamStart"))
		}
		if err := export(message(mesh.RecordsRequests, many...)); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a message of more than 64 KiB: %v", err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

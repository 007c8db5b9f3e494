package generator

import (
	"strconv"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	otelv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/open_telemetry/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// In mode PERMISSIVE Envoy reports traffic that mode STRICT would refuse to the agent, by its access log (decision
// 060). Only the filter chains of this traffic have the access log: mTLS costs nothing more, and mode STRICT has no
// such chains. If Envoy's bootstrap does not declare that its agent reads records, no chain has the log. Otherwise an
// upgrade of the control plane would change filter chains and end connections.

const (
	// recordsInFlight bounds what Envoy buffers for an agent that does not read: this many batches for all workers, and
	// one for each worker and filter chain. Envoy drops and counts the rest. A batch has 16 KiB, since Envoy 1.40 ignores
	// buffer_size_bytes.
	recordsInFlight = 16
	// recordsWindow is the minimum window of HTTP/2, in bytes.
	recordsWindow = 64<<10 - 1
)

// RecordsCluster returns the cluster of the agent that reads the access log, or nil if nothing is recorded. records
// means that the agent reads it.
func RecordsCluster(m *meshview.Mesh, records bool) *clusterv3.Cluster {
	if !records || m.Spec.Mode() != mesh.ModePermissive {
		return nil
	}
	limit := wrapperspb.UInt32(recordsInFlight)
	return &clusterv3.Cluster{
		Name:                          nameAgentRecords,
		AltStatName:                   "agent_records",
		ClusterDiscoveryType:          &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:                durationpb.New(time.Second),
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(recordsWindow),
		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
			MaxRequests: limit, MaxPendingRequests: limit,
		}}},
		LoadAssignment: assignment(nameAgentRecords, lbEndpoint(pipeAddress(mesh.SocketRecords, 0), nil)),
		TypedExtensionProtocolOptions: httpOptions(explicitHTTP2(flow{
			streams: recordsInFlight, stream: recordsWindow, connection: recordsWindow,
		})),
	}
}

// recordConnections records connections when they end, and every mesh.RecordsInterval while they are open. in is nil
// for ports without an inbound.
func (b *inbound) recordConnections(p *tcpproxyv3.TcpProxy, log string, in *mesh.Inbound) {
	if !b.records {
		return
	}
	p.AccessLogOptions = &tcpproxyv3.TcpProxy_TcpAccessLogOptions{
		AccessLogFlushInterval: durationpb.New(mesh.RecordsInterval)}
	p.AccessLog = recordsOf(log, in, datav3.AccessLogType_TcpConnectionEnd, datav3.AccessLogType_TcpPeriodic)
}

// recordRequests records requests when they begin, and every mesh.RecordsInterval while they last.
func (b *inbound) recordRequests(h *hcmv3.HttpConnectionManager, in *mesh.Inbound) {
	if !b.records {
		return
	}
	h.AccessLogOptions = &hcmv3.HttpConnectionManager_HcmAccessLogOptions{
		FlushAccessLogOnNewRequest: true, AccessLogFlushInterval: durationpb.New(mesh.RecordsInterval),
	}
	h.AccessLog = recordsOf(mesh.RecordsRequests, in, datav3.AccessLogType_DownstreamStart,
		datav3.AccessLogType_DownstreamPeriodic)
}

// recordsOf returns an access log of records of these types. Of Envoy's loggers, only this one buffers a bounded amount
// for a hanging reader, also for TCP, and counts drops for each filter chain.
func recordsOf(log string, in *mesh.Inbound, types ...datav3.AccessLogType) []*accesslogv3.AccessLog {
	stat := log
	if in != nil {
		stat += "." + inboundStat(in)
	}
	attributes := []*commonv1.KeyValue{
		attribute(mesh.RecordType, "%ACCESS_LOG_TYPE%"),
		// the address of the connection, whatever the headers of a request claim
		attribute(mesh.RecordSource, "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%"),
		attribute(mesh.RecordPort, "%DOWNSTREAM_LOCAL_PORT%"),
		attribute(mesh.RecordConnection, "%CONNECTION_ID%"),
	}
	if log == mesh.RecordsRequests {
		attributes = append(attributes, attribute(mesh.RecordAgent,
			"%REQ(USER-AGENT):"+strconv.Itoa(len(mesh.KubeletAgent))+"%"))
	} else {
		attributes = append(attributes, attribute(mesh.RecordReceived, "%BYTES_RECEIVED%"))
	}
	return []*accesslogv3.AccessLog{{
		Name: "records",
		Filter: &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_LogTypeFilter{
			LogTypeFilter: &accesslogv3.LogTypeFilter{Types: types},
		}},
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: resource.Any(&otelv3.OpenTelemetryAccessLogConfig{
			GrpcService: &corev3.GrpcService{
				TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
					EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: nameAgentRecords}},
			},
			LogName: log, StatPrefix: stat, DisableBuiltinLabels: true,
			ResourceAttributes: &commonv1.KeyValueList{Values: []*commonv1.KeyValue{attribute(mesh.RecordsLog, log)}},
			Attributes:         &commonv1.KeyValueList{Values: attributes},
		})},
	}}
}

func attribute(key, value string) *commonv1.KeyValue {
	return &commonv1.KeyValue{Key: key,
		Value: &commonv1.AnyValue{Value: &commonv1.AnyValue_StringValue{StringValue: value}}}
}

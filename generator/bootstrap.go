package generator

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	getaddrinfov3 "github.com/envoyproxy/go-control-plane/envoy/extensions/network/dns_resolver/getaddrinfo/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/xds/resource"
)

const (
	// memoryToRelease is how many bytes of freed memory Envoy returns to the system each second.
	memoryToRelease = 1 << 20
	// A stream to a dead control plane ends after the sum of the two. The server must allow pings this often.
	adsPingInterval = 30 * time.Second
	adsPingTimeout  = 10 * time.Second
	// Envoy reopens a broken stream after a random delay, with an upper bound that doubles each time. Only a response
	// resets the bound, and a reconnected proxy that is up to date gets no response. With Envoy's default maximum of 30 s,
	// such a proxy would be late after a restart of the control plane.
	adsRetryFirst = 500 * time.Millisecond
	adsRetryMax   = 4 * time.Second
	// workerHangLimit is the watchdog timeout after which Envoy kills itself because a worker thread hangs, so that the
	// agent restarts Envoy. The agent monitors the main thread.
	workerHangLimit = 20 * time.Second
)

// BootstrapOptions configure how a proxy reaches its control plane, and which resources it may use. Fields without a
// default are required.
type BootstrapOptions struct {
	// Node is the proxy's mesh.ID.
	Node string
	// Cluster is the proxy's workload; Envoy only shows it in its own reports.
	Cluster string
	// ControlPlane is the address of ADS, host:port; the host may be a name or an IP address.
	ControlPlane string
	// ServingCA has the CAs (PEM) that verify the control plane, for an agent that does not write mesh.FileServingCA.
	// Default: Envoy reads that file.
	ServingCA []byte
	// ServingName is a DNS SAN of the control plane's certificate.
	ServingName string
	// DrainTime is Envoy's --drain-time-s. Default mesh.DefaultDrainTime.
	DrainTime time.Duration
	// Records means that the agent reads access log records of plaintext traffic. Default: Envoy sends none.
	Records bool
	// Memory is how many bytes Envoy and its agent may use together. Default mesh.DefaultSidecarMemory.
	Memory uint64
}

// Bootstrap returns the configuration with which Envoy starts. It contains no secrets; Envoy gets everything else over
// ADS. It returns an error if ControlPlane is not host:port.
func Bootstrap(o BootstrapOptions) (*bootstrapv3.Bootstrap, error) {
	cluster, err := controlPlane(o)
	if err != nil {
		return nil, err
	}
	b := baseBootstrap(o.Node, o.Cluster, o.Memory)
	metadata := map[string]*structpb.Value{
		resource.NodeDrainTime: structpb.NewStringValue(cmp.Or(o.DrainTime, mesh.DefaultDrainTime).String()),
	}
	if o.Records {
		metadata[resource.NodeRecords] = structpb.NewStringValue("true")
	}
	b.Node.Metadata = &structpb.Struct{Fields: metadata}
	b.StaticResources = &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{cluster}}
	b.DynamicResources = &bootstrapv3.Bootstrap_DynamicResources{
		LdsConfig: adsConfigSource(),
		CdsConfig: adsConfigSource(),
		AdsConfig: &corev3.ApiConfigSource{
			ApiType:                   corev3.ApiConfigSource_DELTA_GRPC,
			TransportApiVersion:       corev3.ApiVersion_V3,
			SetNodeOnFirstMessageOnly: true,
			GrpcServices: []*corev3.GrpcService{{
				TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
					EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
						ClusterName: nameControlPlane,
						RetryPolicy: &corev3.RetryPolicy{RetryBackOff: &corev3.BackoffStrategy{
							BaseInterval: durationpb.New(adsRetryFirst),
							MaxInterval:  durationpb.New(adsRetryMax),
						}},
					},
				},
			}},
		},
	}
	return b, nil
}

// baseBootstrap returns the bootstrap that all Envoys of the mesh share, with dynamic or static configuration. memory
// is in bytes, see BootstrapOptions.
func baseBootstrap(node, cluster string, memory uint64) *bootstrapv3.Bootstrap {
	memory = cmp.Or(memory, mesh.DefaultSidecarMemory)
	return &bootstrapv3.Bootstrap{
		Node: &corev3.Node{Id: node, Cluster: cluster},
		// The agent must be able to check and drain Envoy, whatever other clients do.
		Admin: &bootstrapv3.Admin{Address: pipeAddress(mesh.SocketAdmin, pipeModePrivate),
			IgnoreGlobalConnLimit: true},
		OverloadManager: overloadManager(memory),
		MemoryAllocatorManager: &bootstrapv3.MemoryAllocatorManager{
			BytesToRelease:        memoryToRelease,
			MemoryReleaseInterval: durationpb.New(time.Second),
			// The overload manager does not count freed memory that the allocator keeps. Without this limit, the memory that one
			// attack has freed would stay, beside a whole heap for the next one.
			SoftMemoryLimitBytes: wrapperspb.UInt64(heapOf(memory)),
		},
		LayeredRuntime: &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{{ // the agent sets mesh.RuntimeEnding
			Name: "agent", LayerSpecifier: &bootstrapv3.RuntimeLayer_AdminLayer_{
				AdminLayer: &bootstrapv3.RuntimeLayer_AdminLayer{}},
		}}},
		StatsConfig: statsConfig(),
		Watchdogs: &bootstrapv3.Watchdogs{
			WorkerWatchdog: &bootstrapv3.Watchdog{KillTimeout: durationpb.New(workerHangLimit)}},
	}
}

func controlPlane(o BootstrapOptions) (*clusterv3.Cluster, error) {
	host, port, err := splitHostPort(o.ControlPlane)
	if err != nil {
		return nil, err
	}
	c := &clusterv3.Cluster{
		Name:                 nameControlPlane,
		AltStatName:          "control_plane",
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(connectTimeout),
		LoadAssignment:       assignment(nameControlPlane, lbEndpoint(tcpAddress(host, port), nil)),
		TransportSocket:      controlPlaneSocket(o),
	}
	if _, err := netip.ParseAddr(host); err != nil {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
		c.TypedDnsResolverConfig = systemResolver()
	}
	http := explicitHTTP2(toServices())
	http.GetExplicitHttpConfig().GetHttp2ProtocolOptions().ConnectionKeepalive = &corev3.KeepaliveSettings{
		Interval: durationpb.New(adsPingInterval),
		Timeout:  durationpb.New(adsPingTimeout),
	}
	c.TypedExtensionProtocolOptions = httpOptions(http)
	return c, nil
}

// systemResolver resolves names as the agent does. Envoy's own resolver, c-ares, gives up at the first SERVFAIL. A DNS
// server that cannot reach outside the cluster answers SERVFAIL to the unchanged name, which is queried before the
// search domains if ndots is below 3.
func systemResolver() *corev3.TypedExtensionConfig {
	return &corev3.TypedExtensionConfig{
		Name: "envoy.network.dns_resolver.getaddrinfo",
		// Without a limit it would retry at once and forever; the cluster itself retries after seconds.
		TypedConfig: resource.Any(&getaddrinfov3.GetAddrInfoDnsResolverConfig{NumRetries: wrapperspb.UInt32(1)}),
	}
}

// controlPlaneSocket trusts only the control plane's serving CAs, which differ from the CA of the mesh.
func controlPlaneSocket(o BootstrapOptions) *corev3.TransportSocket {
	tls := commonTLS(dynamic, []string{alpnHTTP2}, &tlsv3.SubjectAltNameMatcher{
		SanType: tlsv3.SubjectAltNameMatcher_DNS,
		Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: o.ServingName}},
	})
	context := tls.GetCombinedValidationContext()
	context.ValidationContextSdsSecretConfig = sdsSecret(dynamic, mesh.SecretServingCA, mesh.FileServingCA)
	if len(o.ServingCA) > 0 {
		context.GetDefaultValidationContext().TrustedCa = inlineData(o.ServingCA)
		tls.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{
			ValidationContext: context.GetDefaultValidationContext()}
	}
	return tlsSocket(&tlsv3.UpstreamTlsContext{Sni: o.ServingName, CommonTlsContext: tls})
}

func inlineData(data []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: string(data)}}
}

// splitHostPort replaces net.SplitHostPort, since this package does not import net.
func splitHostPort(address string) (host string, port uint32, err error) {
	if at, err := netip.ParseAddrPort(address); err == nil && at.Port() != 0 {
		return at.Addr().String(), uint32(at.Port()), nil
	}
	host, digits, _ := strings.Cut(address, ":")
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || n == 0 || host == "" || strings.ContainsAny(host, "[]/,") {
		return "", 0, fmt.Errorf("read control plane address %q: must be host:port, the port from 1 to 65535", address)
	}
	return host, uint32(n), nil
}

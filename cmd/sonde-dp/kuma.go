package main

const (
	toStderr    = "redirect stderr: the log goes there, and a service manager or the kubelet stores it"
	inStore     = "write the Dataplane into a file of the control plane's --store, and pass its name with --name"
	noDNS       = "leave it out: Sonde answers no DNS queries and redirects none"
	noIPTables  = "leave it out: Sonde uses nftables, and runs no iptables program"
	ofDataplane = "set networking.transparentProxying in the Dataplane, and run sonde-dp install transparent-proxy"
	byPorts     = "write --exclude-inbound-ports or --exclude-outbound-ports: Sonde cannot exclude addresses or users"
)

// ofKuma maps the commands and flags of kuma-dp, and of kumactl's transparent-proxy, that sonde-dp lacks to their
// replacements. Source: Kuma's app/kuma-dp/cmd and app/kumactl/cmd/install.
var ofKuma = map[string]string{
	"run --dataplane-file":                                 inStore,
	"run -d":                                               inStore,
	"run --dataplane":                                      inStore,
	"run --dataplane-var":                                  "write the Dataplane without variables into a file of the control plane's --store",
	"run -v":                                               "write the Dataplane without variables into a file of the control plane's --store",
	"run --dataplane-token":                                "write the token into a file, and pass it with --dataplane-token-file",
	"run --binary-path":                                    "write --envoy-path",
	"run --config-dir":                                     "write --work-dir",
	"run --proxy-type":                                     "leave it out: every proxy is a Dataplane; a gateway's Dataplane has networking.gateway",
	"run --skip-verify":                                    "write --ca-cert-file: the control plane is always verified",
	"run --envoy-log-level":                                "write --log-level, which sets Envoy's level, too",
	"run --envoy-component-log-level":                      "write --log-level, which sets Envoy's level, too",
	"run --metrics-cert-path":                              "write --metrics-addr: metrics are served by plain HTTP",
	"run --metrics-key-path":                               "write --metrics-addr: metrics are served by plain HTTP",
	"run --dns-enabled":                                    noDNS,
	"run --dns-proxy-port":                                 noDNS,
	"run --dns-coredns-port":                               noDNS,
	"run --dns-envoy-port":                                 noDNS,
	"run --dns-coredns-path":                               noDNS,
	"run --transparent-proxy":                              ofDataplane,
	"run --transparent-proxy-config":                       ofDataplane,
	"run --transparent-proxy-config-file":                  ofDataplane,
	"wait --url":                                           "write --admin-addr, the host:port of the agent",
	"wait --unix-socket":                                   "write --admin-addr, the host:port of the agent",
	"wait --check-frequency":                               "leave it out: write --timeout",
	"wait --request-timeout":                               "leave it out: write --timeout",
	"install transparent-proxy --kuma-dp-user":             "write --kuma-dp-uid, with the number of the user",
	"install transparent-proxy --redirect-dns":             noDNS,
	"install transparent-proxy --redirect-all-dns-traffic": noDNS,
	"install transparent-proxy --redirect-dns-port":        noDNS,
	"install transparent-proxy --skip-dns-conntrack-zone-split":   noDNS,
	"install transparent-proxy --redirect-inbound-port-v6":        "write --redirect-inbound-port, which also applies to IPv6",
	"install transparent-proxy --exclude-inbound-ips":             byPorts,
	"install transparent-proxy --exclude-outbound-ips":            byPorts,
	"install transparent-proxy --exclude-outbound-ports-for-uids": byPorts,
	"install transparent-proxy --dry-run":                         "write --verbose, which prints the rules; sonde-dp check transparent-proxy changes nothing",
	"install transparent-proxy --store-firewalld":                 noIPTables,
	"install transparent-proxy --iptables-logs":                   noIPTables,
	"install transparent-proxy --disable-comments":                noIPTables,
	"install transparent-proxy --wait":                            noIPTables,
	"install transparent-proxy --wait-interval":                   noIPTables,
	"install transparent-proxy --max-retries":                     noIPTables,
	"install transparent-proxy --sleep-between-retries":           noIPTables,
	"--log-output-path":                                           toStderr,
	"--log-max-retained-files":                                    toStderr,
	"--log-max-size":                                              toStderr,
	"--log-max-age":                                               toStderr,
}

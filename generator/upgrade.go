package generator

import (
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

// upgrades are the protocols to which an HTTP/1 connection may be upgraded. Envoy accepts only listed names, and
// responds to others with 403. These are the ones that public programs use.
var upgrades = [...]string{
	"websocket",
	"SPDY/3.1",                   // kubectl exec, attach, port-forward
	"tcp",                        // docker attach and exec
	"DERP",                       // Tailscale's relays
	"tailscale-control-protocol", // Tailscale, Headscale
	"alpn", "alpn-ping",          // Teleport
}

func upgradeConfigs() []*hcmv3.HttpConnectionManager_UpgradeConfig {
	all := make([]*hcmv3.HttpConnectionManager_UpgradeConfig, 0, len(upgrades))
	for _, name := range upgrades {
		all = append(all, &hcmv3.HttpConnectionManager_UpgradeConfig{UpgradeType: name})
	}
	return append(all, &hcmv3.HttpConnectionManager_UpgradeConfig{UpgradeType: "CONNECT"})
}

// Package watchdog measures the resources of sonde-watchdog for many clusters, and for a large cluster: its memory,
// and the requests and bytes of its probes, on a real API server.
//
// One API server stands for all clusters' servers, so all have the same nodes, which the watchdog lists for each.
// Each cluster has its own namespace, Secret and dependants, and a forwarder that counts connections and bytes: a
// probe uses a connection for each request.
package watchdog

// Package watchdog measures what sonde-watchdog needs for many clusters, and for a large one: its memory, and the requests and bytes of its probes, on
// a real API server.
//
// One API server stands for those of all clusters, so all have the same nodes, which are listed anew for each. Each cluster has a namespace, a Secret
// and dependants of its own, and is reached by a forwarder, which counts connections and bytes: a probe has a connection for each request.
package watchdog

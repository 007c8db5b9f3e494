// Package throughput measures the throughput of requests and bytes through two proxies of a mesh with mTLS, compared
// with no sidecar, and the cost of plain text for a proxy of a mesh in mode PERMISSIVE.
//
//	go test ./bench/throughput -run '^$' -bench . -control-plane ../bin/old-sonde-cp
//
// To measure another control plane's configuration, such as the previous commit's, alternate it with this one's, and
// compare by benchstat.
package throughput

// Package xds measures the cost of keeping many proxies up to date. It compares Sonde with a server that encodes each
// message once and broadcasts it, a go-control-plane cache with one shared snapshot, and a bare stream. Each runs in
// its own process with the same mTLS. The benchmark's process runs the clients: thousands of delta ADS clients
// without Envoy.
//
//	go test ./bench/xds -run '^$' -bench '/size=50x5$'          # a quick check
//	go test ./bench/xds -run '^$' -bench '^BenchmarkChange$/size=1000x100$' # one row of results.md
//
// The subject sonde is the program sonde-cp with a directory of files. sonde-builder has the same stages without the
// directory and without the APIs of operators and agents, and gets its changes like the others.
package xds

// Package xds measures what it costs to keep many proxies up to date. It compares Sonde with a server that encodes each message once and
// broadcasts it, a go-control-plane cache with one shared snapshot, and a bare stream. Each is a process of its own with the same mTLS. The
// process of the benchmark holds the clients: thousands of delta ADS clients without Envoy.
//
//	go test ./bench/xds -run '^$' -bench '/size=50x5$'          # a quick check
//	go test ./bench/xds -run '^$' -bench '^BenchmarkChange$/size=1000x100$' # one row of docs/benchmarks.md
//
// The subject sonde is the program sonde-cp over a directory of files. sonde-builder has the same stages without the directory and without
// the APIs of operators and agents, and gets its changes as the others do.
package xds

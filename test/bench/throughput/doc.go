// Package throughput measures what requests and bytes get through two proxies of a mesh, with mTLS, beside the same without a sidecar,
// and what plain text costs a proxy of a mesh in mode PERMISSIVE.
//
//	go test ./bench/throughput -run '^$' -bench . -control-plane ../bin/old-sonde-cp
//
// What another control plane's configuration costs, such as that of the commit before, is to be measured in turns with this one's, and
// compared by benchstat.
package throughput

// Package podmetrics measures what it costs to scrape the metrics of a pod, and how many there are, with the real Envoy.
//
//	make bench PKG=test/bench/podmetrics TIME=60x
//
// is a scrape each second for a minute, in meshes of several sizes.
package podmetrics

// Package podmetrics measures the cost of scraping the metrics of a pod, and their number, with the real Envoy.
//
//	make bench PKG=test/bench/podmetrics TIME=60x
//
// scrapes each second for a minute, in meshes of several sizes.
package podmetrics

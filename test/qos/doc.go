// Package qos holds the resources of injected pods against Kubernetes' own code: that which computes QoS classes, and the kubelet's which gives
// exclusive CPUs.
package qos

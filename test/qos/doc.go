// Package qos checks the resources of injected pods with Kubernetes' own code: the computation of QoS classes, and
// the kubelet's assignment of exclusive CPUs.
package qos

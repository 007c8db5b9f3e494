// Package cni runs the CNI plugin and its daemon as a container runtime and Kubernetes do, in network namespaces of
// this machine.
package cni

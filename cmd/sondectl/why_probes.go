package main

import (
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
)

// probeOf returns the serviceProbe of an inbound, nil if its agent has not reported it.
func probeOf(p *adminv1.Proxy, inbound string) *describe.Probe {
	for _, probe := range describe.Probes(p.GetVerdicts()) {
		if probe.Inbound == inbound {
			return &probe
		}
	}
	return nil
}

package dpagent_test

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

func TestServiceProbesThatAreWrong(t *testing.T) {
	tests := map[string]struct {
		change func(*agentv1.ServiceProbe)
		want   string
	}{
		"inbound":     {func(p *agentv1.ServiceProbe) { p.Inbound = "web" }, `probes[0].inbound: \"web\": must be ip:port`},
		"application": {func(p *agentv1.ServiceProbe) { p.Application = "localhost:80" }, `probes[0].application: \"localhost:80\": must be ip:port`},
		"period":      {func(p *agentv1.ServiceProbe) { p.Period = nil }, `probes[0].period: \"0s\": must be longer than 0`},
		"timeout":     {func(p *agentv1.ServiceProbe) { p.Timeout = durationpb.New(-1) }, `probes[0].timeout: \"-1ns\": must be longer than 0`},
		"failures":    {func(p *agentv1.ServiceProbe) { p.FailureThreshold = 0 }, `probes[0].failure_threshold: \"0\": must be at least 1`},
		"successes":   {func(p *agentv1.ServiceProbe) { p.SuccessThreshold = 0 }, `probes[0].success_threshold: \"0\": must be at least 1`},
		"no handler":  {func(p *agentv1.ServiceProbe) { p.Handler = nil }, `probes[0].handler: must be of a type that this agent supports`},
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "service-probes")
		r := w.start()
		for _, tc := range tests {
			p := &agentv1.ServiceProbe{
				Inbound: "10.0.0.2:8080", Application: "127.0.0.1:8080", Handler: &agentv1.ServiceProbe_TcpSocket{TcpSocket: &agentv1.ServiceProbe_TCPSocket{}},
				Period: durationpb.New(time.Second), Timeout: durationpb.New(time.Second), FailureThreshold: 2, SuccessThreshold: 1,
			}
			tc.change(p)
			w.SendServiceProbes(p)
			r.logged(tc.want)
		}
	})
}

package xds

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sonde-mesh/sonde/internal/testing/logtest"
	"github.com/sonde-mesh/sonde/xds/resource"
)

func TestDrainTimeOfANode(t *testing.T) {
	t.Parallel()
	text := func(s string) *structpb.Value { return structpb.NewStringValue(s) }
	tests := map[string]struct {
		value  *structpb.Value
		want   time.Duration
		logged bool
	}{
		"not said":    {nil, 7 * time.Second, false},
		"said":        {text("40s"), 40 * time.Second, false},
		"none":        {text("0s"), 0, false},
		"no duration": {text("soon"), 7 * time.Second, true},
		"a number":    {structpb.NewNumberValue(5), 7 * time.Second, true},
		"negative":    {text("-1s"), 7 * time.Second, true},
		"too long":    {text("61m"), 7 * time.Second, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := &logtest.Buffer{}
			s := NewServer(Options{DrainTime: 7 * time.Second, MaxDrainTime: time.Hour, Logger: slog.New(slog.NewTextHandler(log, nil))}, nil, nil)
			node := &corev3.Node{Id: "m/a"}
			if tc.value != nil {
				node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{resource.NodeDrainTime: tc.value}}
			}
			expect(t, s.statedDrainTime(node), tc.want)
			expect(t, strings.Contains(log.String(), "invalid drain time of node"), tc.logged)
		})
	}
}

func TestRemovalsAreSentWhenTheDrainIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Options{DrainTime: 10 * time.Second})
		f.want("m/a", "CDS static@1 static2@1 LDS l@1")
		p := f.delta().listen()
		p.send(ask("m/a", "CDS"))
		p.send(ack(p.next(), ""))
		p.send(ask("", "LDS"))
		p.send(ack(p.next(), ""))
		f.want("m/a", "CDS static@1 LDS l@2")
		l := p.next()
		expect(t, said(l), "LDS l@2")
		p.send(ack(l, ""))
		time.Sleep(10*time.Second + drainMargin - 1)
		p.quiet()
		time.Sleep(time.Nanosecond)
		expect(t, said(p.next()), "CDS -static2")
	})
}

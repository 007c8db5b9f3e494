package main

import (
	"encoding/json"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

func TestSinceOfInboundsAndOutbounds(t *testing.T) {
	since := timestamppb.New(time.Date(2026, 11, 27, 10, 0, 0, 5, time.UTC))
	body, err := json.Marshal(newDataplaneStatus(&adminv1.Dataplane{
		Inbounds:  []*adminv1.InboundHealth{{Health: adminv1.Endpoint_READY, Since: since}, {Health: adminv1.Endpoint_READY}},
		Outbounds: []*adminv1.OutboundHealth{{Address: "127.0.0.1:1", Health: adminv1.Endpoint_READY, Since: since}},
	}))
	const want = `{"draining":false,"inbounds":[{"health":"READY","since":"2026-11-27T10:00:00Z"},{"health":"READY"}],` +
		`"outbounds":[{"address":"127.0.0.1:1","health":"READY","since":"2026-11-27T10:00:00Z"}]}`
	if err != nil || string(body) != want {
		t.Errorf("got %s, %v, want %s", body, err, want)
	}
}

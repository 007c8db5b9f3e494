package xds

import (
	"fmt"
	"strings"
	"testing"
)

// synced is the beginning of most cases: an Envoy with one resource of each type, all ACKed.
const synced = `
	want CDS a@1 EDS a@1 LDS l@1 RDS r@1
	> CDS
	< CDS a@1
	> EDS +a
	< EDS a@1
	> CDS ack
	> EDS ack
	> LDS
	< LDS l@1
	> RDS +r
	< RDS r@1
	> LDS ack
	> RDS ack
	<
`

func TestDelta(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"first start": synced,

		// Subscriptions that test/conformance does not cover: before the first view, and in unusual requests.
		"nothing before the first view": `
			> CDS
			> LDS
			> EDS +a
			<
			want CDS a@1 EDS a@1 LDS l@1
			< CDS a@1
			< EDS a@1
			<
			> CDS ack
			< LDS l@1`,
		"a view without anything is an answer": `
			> CDS
			> LDS
			<
			want CDS
			< CDS
			<
			> CDS ack
			< LDS
			<`,
		"a proxy that is no longer known keeps what it has": synced + `
			unknown
			<
			> EDS +a
			< EDS a@1`,
		"a name after the old wildcard keeps the wildcard": synced + `
			> CDS +a
			< CDS a@1
			< EDS a@1
			want CDS a@1 b@1 EDS a@1 LDS l@1 RDS r@1
			< CDS b@1
			<`,
		"subscribe to the wildcard later": `
			want CDS a@1 b@1
			> CDS +a
			< CDS a@1
			> CDS ack
			> CDS +*
			< CDS b@1
			<`,
		"subscribe with an ACK": `
			want EDS a@1 b@1
			> EDS +a
			< EDS a@1
			> EDS ack +b
			< EDS b@1
			<`,
		"types that are not served have no resources": `
			> type.googleapis.com/x.Y
			> type.googleapis.com/x.Z +a +b
			> EDS +a
			<
			want EDS a@1
			< type.googleapis.com/x.Y
			< type.googleapis.com/x.Z -a -b
			< EDS a@1
			<
			> type.googleapis.com/x.Y ack
			> type.googleapis.com/x.Z ack +c
			< type.googleapis.com/x.Z -c
			<`,
		"unsubscribe before the answer": `
			> EDS +a
			> EDS -a
			want EDS a@1
			<`,
		"unsubscribing the last name does not mean all": `
			want CDS a@1 b@1
			> CDS +a
			< CDS a@1
			> CDS ack -a
			> CDS
			want CDS a@2 b@2
			<`,
		"the same name twice in a request": `
			want EDS a@1
			> EDS +a +a
			< EDS a@1
			<`,

		// Reconnect.
		"reconnect before the first view": `
			> CDS init:a@1
			> EDS +a init:a@1
			> LDS init:l@1
			> RDS +r init:r@1
			<
			want CDS a@1 EDS a@1 LDS l@1 RDS r@1
			<`,
		"reconnect gets what changed": `
			want CDS a@1 b@2 EDS a@2 b@1 LDS l@1 RDS r@2
			> CDS init:a@1 init:b@1
			> EDS +a +b init:a@1 init:b@1
			> LDS init:l@1
			> RDS +r init:r@1
			< CDS b@2
			< EDS a@2 b@1
			<
			> CDS ack
			< RDS r@2
			<`,
		"reconnect: a cluster sent before its endpoints were asked for warms": `
			want CDS a@2 EDS a@1
			> CDS init:a@1
			< CDS a@2
			<
			> EDS +a init:a@1
			< EDS a@1
			<`,
		"reconnect with a name that is gone": `
			want CDS a@1 EDS a@1 LDS l@1
			> CDS init:a@1 init:b@1
			> EDS +a +b init:a@1 init:b@1
			> LDS init:l@1 init:m@1
			< LDS -m
			<
			> LDS ack
			< CDS -b
			<
			> CDS ack
			< EDS -b
			<`,
		"reconnect: nothing is removed before the proxy has answered": `
			want CDS a@1 LDS l@1 RDS r@2
			> CDS init:a@1 init:b@1
			< CDS
			<
			> LDS init:l@1
			<
			> RDS +r init:r@1
			<
			> CDS ack
			< RDS r@2
			<
			> RDS ack
			< CDS -b
			<`,
		"reconnect with endpoints that no longer exist": `
			want CDS a@1
			> EDS +a init:a@1
			< EDS
			> EDS ack
			< EDS -a
			<`,
		"versions count in the first request alone": synced + `
			> CDS init:zzz@1
			<`,
		"versions of names that are not subscribed to": `
			want EDS a@1
			> EDS +a init:b@1
			< EDS a@1
			<`,
		"a version without a value is sent again": `
			want CDS a@1
			> CDS init:a@
			< CDS a@1`,
		"reconnect with the new wildcard": `
			want CDS a@1 b@1
			> CDS +* init:a@1 init:b@0
			< CDS b@1
			<`,
	}
	for name, text := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runScript(t, false, text)
		})
	}
}

func TestDeltaErrors(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"too many types that are not served": unservedTypes(maxUnserved) + `
			> one-more
			error is one of more than 16 types that are not served; served are type.googleapis.com/envoy.config.cluster.v3.Cluster`,
	}
	for name, text := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runScript(t, false, text)
		})
	}
}

func unservedTypes(n int) string {
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, "> type-%d\n", i)
	}
	return lines.String()
}

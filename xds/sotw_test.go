package xds

import (
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
)

const syncedSotw = `
	want CDS a@1 EDS a@1 LDS l@1 RDS r@1
	> CDS
	< CDS a@1
	> EDS a
	< EDS a@1
	> CDS ack
	> EDS ack
	> LDS
	< LDS l@1
	> RDS r
	< RDS r@1
	> LDS ack
	> RDS ack
	<
`

func TestSotw(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"first start": syncedSotw,
		"nothing before the first view": `
			> CDS
			> EDS a
			<
			want CDS a@1 EDS a@1
			< CDS a@1
			< EDS a@1
			<`,
		"a view without anything is an answer": `
			want CDS
			> CDS
			< CDS
			<
			> CDS ack
			<`,
		"wildcard and a name": `
			want CDS a@1 b@1
			> CDS * a
			< CDS a@1 b@1
			<`,
		"names after the wildcard end it": `
			want LDS a@1 b@1
			> LDS
			< LDS a@1 b@1
			> LDS ack a
			want LDS a@1 b@2
			<
			want LDS a@2 b@2
			< LDS a@2
			<`,
		"a changed cluster is followed by its endpoints": syncedSotw + `
			want CDS a@2 EDS a@1 LDS l@1 RDS r@1
			< CDS a@2
			< EDS a@1
			<`,
		"the same names again are not answered": syncedSotw + `
			> EDS a
			> RDS r
			> CDS
			<`,
		"a request without a nonce after a response begins again": syncedSotw + `
			> EDS #none a
			< EDS a@1
			<
			> EDS ack a
			<
			> CDS #none
			< CDS a@1
			<
			> CDS ack
			<
			> RDS #none r q
			< RDS r@1
			<`,
		"a request without a nonce by a proxy that has not seen the first response yet": `
			want EDS a@1 b@1
			> EDS a
			< EDS a@1
			> EDS #none a b
			< EDS b@1
			<`,
		"a second request before the first response": `
			> EDS a
			> EDS a b
			want EDS a@1 b@1
			< EDS a@1 b@1
			<`,
		"what must go goes last": syncedSotw + `
			want CDS b@1 EDS b@1 LDS m@1 RDS q@1
			< CDS a@1 b@1
			> EDS a b
			< EDS b@1
			<
			> CDS ack
			< LDS m@1
			<
			> RDS r q
			< RDS q@1
			> LDS ack
			<
			> RDS ack q
			< CDS b@1
			<
			> EDS ack b
			> CDS ack
			<`,
		"removed endpoints are not mentioned": syncedSotw + `
			want CDS a@1 LDS l@1 RDS r@1
			<
			want CDS a@1 EDS a@1 LDS l@1 RDS r@1
			< EDS a@1
			<`,
		"own and shared together, sorted": `
			want CDS a@1 c@1
			own CDS b@1
			> CDS
			< CDS a@1 b@1 c@1
			<`,

		"NACK alone keeps the last good one": syncedSotw + `
			want CDS a@1 EDS a@1 LDS l@2 m@1 RDS r@1
			< LDS l@2 m@1
			> LDS nack: Error adding/updating listener(s) l: no
			< LDS l@1 m@1
			> LDS ack
			<
			refused LDS l@2
			want CDS a@1 EDS a@1 LDS l@2 m@2 RDS r@1
			< LDS l@1 m@2`,
		"NACK of a new one leaves it out": syncedSotw + `
			want CDS a@1 EDS a@1 LDS l@1 m@1 RDS r@1
			< LDS l@1 m@1
			> LDS nack: no
			<
			want CDS a@1 EDS a@1 LDS l@2 m@1 RDS r@1
			< LDS l@2`,
		"NACK without a name: one by one": syncedSotw + `
			want CDS a@1 EDS a@1 LDS l@2 m@1 RDS r@1
			< LDS l@2 m@1
			> LDS nack: no
			< LDS l@2
			<
			> LDS ack
			< LDS l@2 m@1
			> LDS nack: no
			<
			refused LDS m@1`,
		"NACK of endpoints": `
			want EDS a@1 b@1
			> EDS a b
			< EDS a@1 b@1
			> EDS nack: no
			< EDS a@1
			< EDS b@1
			> EDS ack
			> EDS nack: no
			<
			refused EDS b@1`,
	}
	for name, text := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runScript(t, true, text)
		})
	}
}

func TestSotwVersion(t *testing.T) {
	t.Parallel()
	version := func(words ...string) string {
		r := &response{subscription: &subscription{kind: shortTypes["CDS"]}}
		for _, w := range words {
			r.full = append(r.full, res(shortTypes["CDS"], w))
		}
		return r.state().GetVersionInfo()
	}
	if first := version("a@1", "b@1"); first != version("a@1", "b@1") {
		t.Error("the same content has two versions")
	}
	if version("a@1", "b@1") == version("a@1", "b@2") || version("a@1") == version("a@1", "b@1") {
		t.Error("other content has the same version")
	}
}

func TestEmptyAssignment(t *testing.T) {
	t.Parallel()
	got := &endpointv3.ClusterLoadAssignment{}
	if err := emptyAssignment("x").Body.UnmarshalTo(got); err != nil || got.GetClusterName() != "x" || len(got.GetEndpoints()) > 0 {
		t.Errorf("emptyAssignment() = %v, %v", got, err)
	}
}

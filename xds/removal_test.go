package xds

import "testing"

func TestRemovalsWaitForTheDrain(t *testing.T) {
	t.Parallel()
	delta := map[string]string{
		"what a replaced listener refers to": synced + `
			drain 10s
			want CDS b@1 EDS b@1 LDS m@1 RDS q@1
			< CDS b@1
			> EDS +b
			< EDS b@1
			> CDS ack
			< LDS m@1 -l
			> RDS +q
			< RDS q@1
			> LDS ack
			> RDS ack
			<
			after 9s
			<
			after 1s
			< RDS -r
			<
			> RDS ack -r
			< CDS -a
			<
			> CDS ack
			< EDS -a
			<`,
		"a later listener does not hold back what an earlier one refers to": synced + `
			drain 10s
			want CDS EDS LDS l@2 RDS r@1
			< LDS l@2
			> LDS ack
			<
			after 5s
			want CDS EDS LDS l@3 RDS r@1
			< LDS l@3
			> LDS ack
			<
			after 5s
			< CDS -a
			<`,
		"back before it went": synced + `
			drain 10s
			want CDS EDS LDS l@2 RDS r@1
			< LDS l@2
			> LDS ack
			<
			after 9s
			want CDS a@1 EDS a@1 LDS l@3 RDS r@1
			< LDS l@3
			> LDS ack
			<
			after 1h
			<
			want CDS EDS LDS l@4 RDS r@1
			< LDS l@4
			> LDS ack
			<
			after 10s
			< CDS -a
			<`,
		"its endpoints are asked for meanwhile": synced + `
			drain 10s
			want CDS EDS LDS l@2 RDS r@1
			< LDS l@2
			> LDS ack
			<
			after 5s
			> EDS +a
			< EDS a@1
			> EDS ack
			<
			after 5s
			< CDS -a
			<
			> CDS ack
			< EDS -a
			<`,
		"other endpoints change meanwhile": synced + `
			> EDS +b
			want CDS a@1 EDS a@1 b@1 LDS l@1 RDS r@1
			< EDS b@1
			> EDS ack
			drain 10s
			want CDS EDS b@1 LDS l@2 RDS r@1
			< LDS l@2
			> LDS ack
			<
			after 5s
			want CDS EDS b@2 LDS l@2 RDS r@1
			< EDS b@2
			<`,
		"after a reconnect the drain may have just begun": `
			drain 10s
			want CDS LDS l@1
			> CDS init:a@1
			< CDS
			> LDS init:l@1
			> CDS ack
			<
			after 10s
			< CDS -a
			<`,
		"a listener goes at once": synced + `
			drain 10s
			want CDS a@1 EDS a@1 LDS RDS r@1
			< LDS -l
			<`,
	}
	sotw := map[string]string{
		"a cluster stays in the list": syncedSotw + `
			drain 10s
			want CDS b@1 EDS b@1 LDS m@1 RDS q@1
			< CDS a@1 b@1
			> EDS a b
			< EDS b@1
			> CDS ack
			< LDS m@1
			> RDS r q
			< RDS q@1
			> LDS ack
			> RDS ack q
			<
			after 5s
			want CDS b@2 EDS b@1 LDS m@1 RDS q@1
			< CDS a@1 b@2
			< EDS b@1
			> CDS ack
			<
			after 5s
			< CDS b@2
			<`,
	}
	for name, text := range delta {
		t.Run("delta: "+name, func(t *testing.T) {
			t.Parallel()
			runScript(t, false, text)
		})
	}
	for name, text := range sotw {
		t.Run("state of the world: "+name, func(t *testing.T) {
			t.Parallel()
			runScript(t, true, text)
		})
	}
}

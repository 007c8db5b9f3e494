package xds

import "testing"

func TestDeltaOrder(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"endpoints change": synced + `
			want CDS a@1 EDS a@2 LDS l@1 RDS r@1
			< EDS a@2
			<`,
		"endpoints wait for nothing": synced + `
			want CDS a@1 EDS a@2 LDS l@1 RDS r@1
			< EDS a@2
			want CDS a@1 EDS a@3 LDS l@1 RDS r@1
			< EDS a@3
			<`,
		"a changed cluster is followed by its endpoints": synced + `
			want CDS a@2 EDS a@1 LDS l@1 RDS r@1
			< CDS a@2
			< EDS a@1
			<`,
		"a changed cluster and changed endpoints": synced + `
			want CDS a@2 EDS a@2 LDS l@1 RDS r@1
			< CDS a@2
			< EDS a@2
			<`,
		"a cluster that accepts one more goes before the endpoint": `
			want CDS a@1+x EDS a@1
			> CDS
			< CDS a@1+x
			> EDS +a
			< EDS a@1
			> CDS ack
			> EDS ack
			want CDS a@2+xy EDS a@2
			< CDS a@2+xy
			< EDS a@1
			<
			want CDS a@2+xy EDS a@3
			<
			> EDS ack
			<
			> CDS ack
			< EDS a@3
			> EDS ack
			want CDS a@3+y EDS a@4
			< CDS a@3+y
			< EDS a@4
			want CDS a@4+xy EDS a@5
			< CDS a@4+xy
			< EDS a@4
			> CDS ack
			<
			> CDS nack: why
			refused CDS a@4+xy
			< EDS a@5
			<`,
		"a cluster that accepts others, not more": `
			want CDS a@1+x EDS a@1
			> CDS
			< CDS a@1+x
			> EDS +a
			< EDS a@1
			> CDS ack
			> EDS ack
			want CDS a@2+y EDS a@2
			< CDS a@2+y
			< EDS a@2
			want CDS a@3+yz EDS a@3
			< CDS a@3+yz
			< EDS a@3
			<`,
		"a cluster that accepts one more to a proxy that reconnects": `
			want CDS a@2+xy EDS a@2
			> CDS init:a@1
			> EDS +a init:a@1
			< CDS a@2+xy
			< EDS a@2
			<`,
		"a changed cluster whose endpoints do not exist": `
			want CDS a@1
			> CDS
			< CDS a@1
			> EDS +a
			< EDS -a
			> CDS ack
			> EDS ack
			want CDS a@2
			< CDS a@2
			< EDS -a
			<`,
		"a changed cluster whose endpoints vanish": synced + `
			want CDS a@2 LDS l@1 RDS r@1
			< CDS a@2
			< EDS -a
			<`,
		"a changed cluster that goes while it warms keeps its endpoints until its removal": synced + `
			want CDS a@2 EDS a@1 LDS l@1 RDS r@1
			< CDS a@2
			want CDS b@1 EDS b@1 LDS l@2 RDS r@2
			< CDS b@1
			> EDS +b
			< EDS a@1 b@1
			<
			> CDS ack
			> CDS ack
			< LDS l@2
			< RDS r@2
			<
			> LDS ack
			> RDS ack
			< CDS -a
			<
			> EDS -a
			> CDS ack
			<`,
		"a changed cluster that goes before a proxy that reconnects gets its changed endpoints": `
			want CDS a@2 EDS a@2 LDS l@1 RDS r@1
			> CDS init:a@1
			> EDS +a init:a@1
			> LDS init:l@1
			> RDS +r init:r@1
			< CDS a@2
			want CDS EDS LDS l@2 RDS r@1
			< EDS a@2
			> EDS ack
			> CDS ack
			< LDS l@2
			> LDS ack
			< CDS -a
			<`,
		"a cluster without endpoints of its own": `
			want CDS static@1 EDS static@1
			> CDS
			< CDS static@1
			> EDS +static
			< EDS static@1
			want CDS static@2 EDS static@1
			< CDS static@2
			<`,
		"listeners and routes wait for the ACK of clusters": synced + `
			want CDS a@1 b@1 EDS a@1 b@1 LDS l@2 RDS r@2
			< CDS b@1
			<
			> EDS +b
			< EDS b@1
			> EDS ack
			<
			> CDS ack
			< LDS l@2
			< RDS r@2
			<`,
		"routes alone wait for nothing": synced + `
			want CDS a@1 EDS a@1 LDS l@1 RDS r@2
			< RDS r@2
			<`,
		"a route asked for meanwhile waits, too": synced + `
			want CDS a@2 EDS a@1 LDS l@1 RDS r@1 q@1
			< CDS a@2
			< EDS a@1
			> RDS +q
			<
			> CDS ack
			< RDS q@1
			<`,
		"two changes of clusters, both must be ACKed": synced + `
			want CDS a@2 EDS a@1 LDS l@2 RDS r@1
			< CDS a@2
			< EDS a@1
			want CDS a@3 EDS a@1 LDS l@2 RDS r@1
			< CDS a@3
			< EDS a@1
			> CDS ack
			<
			> CDS ack
			< LDS l@2
			<`,
		"what must go goes last": synced + `
			want CDS b@1 EDS b@1 LDS m@1 RDS q@1
			< CDS b@1
			> EDS +b
			< EDS b@1
			<
			> CDS ack
			< LDS m@1 -l
			<
			> RDS +q
			< RDS q@1
			> LDS ack
			<
			> RDS ack -r
			< CDS -a
			<
			> EDS -a
			> CDS ack
			<`,
		"endpoints that must go, after their cluster": synced + `
			want CDS LDS l@1 RDS r@1
			< CDS -a
			<
			> CDS ack
			< EDS -a
			<`,
		"a route that does not exist is not answered while a listener is under way": synced + `
			want CDS a@1 EDS a@1 LDS l@2 RDS r@1
			< LDS l@2
			> RDS +q
			<
			> LDS ack
			< RDS -q
			<`,
		"a listener that must go waits for clusters only": synced + `
			want CDS a@1 EDS a@1 RDS r@1
			< LDS -l
			<`,
		"a route that must go, while its listener stays": synced + `
			want CDS a@1 EDS a@1 LDS l@1
			< RDS -r
			<`,
		"gone and back before it was said": synced + `
			want CDS b@1 EDS b@1 LDS l@1 RDS r@1
			< CDS b@1
			want CDS a@1 b@1 EDS a@1 b@1 LDS l@1 RDS r@1
			> CDS ack
			<`,
		"gone and back after it was said": synced + `
			want CDS LDS l@1 RDS r@1 EDS a@1
			< CDS -a
			want CDS a@1 LDS l@1 RDS r@1 EDS a@1
			< CDS a@1
			< EDS a@1
			<`,
		"changed and back before it was said": synced + `
			want CDS a@2 b@1 EDS a@1 LDS l@2 RDS r@1
			< CDS a@2 b@1
			< EDS a@1
			want CDS a@2 b@1 EDS a@1 LDS l@1 RDS r@1
			> CDS ack
			<`,
		"skipped versions are not sent": `
			> CDS
			want CDS a@1
			want CDS a@2
			want CDS a@3
			< CDS a@3
			<`,
		"a resource moves from the shared set to its own": synced + `
			own LDS m@1
			< LDS m@1
			> LDS ack
			want CDS a@1 EDS a@1 LDS l@1 RDS r@1
			<`,
		"own changes alone": synced + `
			own LDS m@1
			< LDS m@1
			own LDS m@2
			< LDS m@2
			<`,

		// Answers.
		"an unknown nonce is ignored": synced + `
			want CDS a@2 EDS a@1 LDS l@2 RDS r@1
			< CDS a@2
			< EDS a@1
			> CDS ack#999
			<
			> CDS ack
			< LDS l@2`,
		"a nonce that was answered is ignored": synced + `
			> CDS ack#1
			<`,
		"a subscription beside a stale nonce counts": synced + `
			want CDS a@1 b@1 EDS a@1 b@1 LDS l@1 RDS r@1
			< CDS b@1
			> EDS ack#1 +b
			< EDS b@1`,
		"a later ACK answers for earlier ones": synced + `
			want CDS a@2 EDS a@1 LDS l@2 RDS r@1
			< CDS a@2
			< EDS a@1
			want CDS a@3 EDS a@1 LDS l@2 RDS r@1
			< CDS a@3
			< EDS a@1
			> CDS ack#7
			< LDS l@2`,
		"a proxy that never answers gets no more than the window": `
			> EDS +a
			want EDS a@1
			< EDS a@1
			want EDS a@2
			< EDS a@2
			want EDS a@3
			< EDS a@3
			want EDS a@4
			< EDS a@4
			want EDS a@5
			< EDS a@5
			want EDS a@6
			< EDS a@6
			want EDS a@7
			< EDS a@7
			want EDS a@8
			< EDS a@8
			want EDS a@9
			< EDS a@9
			want EDS a@10
			< EDS a@10
			want EDS a@11
			< EDS a@11
			want EDS a@12
			< EDS a@12
			want EDS a@13
			< EDS a@13
			want EDS a@14
			< EDS a@14
			want EDS a@15
			< EDS a@15
			want EDS a@16
			< EDS a@16
			want EDS a@17
			<
			want EDS a@18
			<
			> EDS ack
			< EDS a@18
			<`,
	}
	for name, text := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runScript(t, false, text)
		})
	}
}

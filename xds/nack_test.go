package xds

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// A single refused resource is tested by TestAnswer of test/conformance and by TestNACKIsReported.
func TestDeltaNACK(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"the refused version again is not sent": synced + `
			want CDS a@1 EDS a@1 LDS l@2 RDS r@1
			< LDS l@2
			> LDS nack: no
			want CDS a@1 EDS a@1 LDS l@3 RDS r@1
			< LDS l@3
			> LDS ack
			want CDS a@1 EDS a@1 LDS l@2 RDS r@1
			<
			refused LDS l@2`,
		"a refused new one is removed": synced + `
			want CDS a@1 EDS a@1 LDS l@1 m@1 RDS r@1
			< LDS m@1
			> LDS nack: no
			<
			want CDS a@1 EDS a@1 LDS l@1 RDS r@1
			< LDS -m
			<
			refused`,
		"listeners, one named among good ones": synced + `
			want CDS a@1 EDS a@1 LDS l@1 m@1 n@1 RDS r@1
			< LDS m@1 n@1
			> LDS nack: Error adding/updating listener(s) n: cannot bind '127.0.0.1:1': Address already in use
			< LDS m@1
			> LDS ack
			<
			refused LDS n@1`,
		"a good one that is gone when it should be sent again": synced + `
			want CDS a@1 EDS a@1 LDS l@1 m@1 n@1 RDS r@1
			< LDS m@1 n@1
			want CDS a@1 EDS a@1 LDS l@1 n@1 RDS r@1
			> LDS nack: Error adding/updating listener(s) n: no
			< LDS -m
			<`,
		"a removal in a refused response is sent again": synced + `
			want CDS a@1 EDS a@1 LDS m@1 n@1 RDS r@1
			< LDS m@1 n@1 -l
			> LDS nack: Error adding/updating listener(s) n: no
			< LDS m@1 -l
			> LDS ack
			<`,
		"clusters, two named among good ones": synced + `
			want CDS a@1 b@1 c@1 d@1 EDS a@1 LDS l@1 RDS r@1
			< CDS b@1 c@1 d@1
			> CDS nack: Error adding/updating cluster(s) b: why, d: why
			< CDS c@1
			> CDS ack
			<
			refused CDS b@1 CDS d@1`,
		"clusters by the rules of fields, the first is named": synced + `
			want CDS a@1 b@1 c@1 EDS a@1 LDS l@1 RDS r@1
			< CDS b@1 c@1
			> CDS nack: Proto constraint validation failed (ClusterValidationError.X): name:  "c"
			< CDS b@1
			refused CDS c@1`,
		"clusters, none named: in halves": synced + `
			want CDS a@1 b@1 c@1 d@1 e@1 EDS a@1 b@1 c@1 d@1 e@1 LDS l@2 RDS r@1
			< CDS b@1 c@1 d@1 e@1
			> CDS nack: something is wrong
			< CDS b@1 c@1
			< CDS d@1 e@1
			<
			> CDS nack: something is wrong
			< CDS b@1
			< CDS c@1
			<
			> CDS ack
			<
			> CDS ack
			> CDS nack: something is wrong
			< LDS l@2
			refused CDS c@1`,
		"a version that may be in use, since it came with a refused one, keeps what it needs": synced + `
			want CDS a@1 b@1 EDS a@1 b@1 LDS l@1 m@1 n@1 RDS r@1
			< CDS b@1
			> CDS ack
			< LDS m@1 n@1
			> LDS nack: something is wrong
			want CDS a@1 EDS a@1 LDS l@1 m@2 n@1 RDS r@1
			< LDS m@2
			< LDS n@1
			> LDS nack: something is wrong
			> LDS ack
			<
			want CDS a@1 EDS a@1 LDS l@1 m@3 n@1 RDS r@1
			< LDS m@3
			> LDS ack
			< CDS -b
			refused`,
		"a version that was not used, since the response was invalid, keeps nothing": synced + `
			want CDS a@1 b@1 EDS a@1 b@1 LDS l@1 m@1 n@1 RDS r@1
			< CDS b@1
			> CDS ack
			< LDS m@1 n@1
			> LDS nack: Proto constraint validation failed (X): name: "n"
			want CDS a@1 EDS a@1 LDS l@1 m@2 n@1 RDS r@1
			< LDS m@2
			> LDS nack: something is wrong
			< CDS -b
			refused LDS m@2 LDS n@1`,
		"endpoints: in halves": `
			want EDS a@1 b@1 c@1
			> EDS +a +b +c
			< EDS a@1 b@1 c@1
			> EDS nack: malformed IP address
			< EDS a@1 b@1
			< EDS c@1
			<
			> EDS nack: malformed IP address
			< EDS a@1
			< EDS b@1
			<
			> EDS ack
			> EDS ack
			> EDS nack: malformed IP address
			<
			refused EDS b@1`,
		"two of a group are refused": `
			want EDS a@1 b@1 c@1 d@1
			> EDS +a +b +c +d
			< EDS a@1 b@1 c@1 d@1
			> EDS nack: no
			< EDS a@1 b@1
			< EDS c@1 d@1
			> EDS nack: no
			> EDS nack: no
			< EDS a@1
			< EDS b@1
			< EDS c@1
			< EDS d@1
			> EDS ack
			> EDS nack: no
			> EDS nack: no
			> EDS ack
			<
			refused EDS b@1 EDS c@1`,
		"endpoints: what is new meanwhile is not held up": `
			want EDS a@1 b@1
			> EDS +a +b +c
			< EDS a@1 b@1 -c
			> EDS nack: no
			want EDS a@1 b@1 c@1
			< EDS c@1
			< EDS a@1
			< EDS b@1
			<`,
		"ACKed after all: sent again when it is asked for": `
			want EDS a@1
			> EDS +a
			< EDS a@1
			> EDS +a
			< EDS a@1
			> EDS nack: no
			refused EDS a@1
			> EDS ack
			refused
			> EDS +a
			< EDS a@1
			<`,
		"asked again for what was refused, after it was unsubscribed: the last good one": `
			want EDS a@1
			> EDS +a
			< EDS a@1
			> EDS ack
			want EDS a@2
			< EDS a@2
			> EDS nack: no
			> EDS -a
			<
			> EDS +a
			< EDS a@1
			<
			refused EDS a@2`,
		"the environment refuses: sent again later, and later": synced + `
			want CDS a@1 EDS a@1 LDS l@1 m@1 RDS r@1
			< LDS m@1
			> LDS nack: Error adding/updating listener(s) m: cannot bind '127.0.0.1:80': Address already in use
			<
			refused LDS m@1
			after 1s
			< LDS m@1
			refused LDS m@1
			> LDS nack: Error adding/updating listener(s) m: cannot bind '127.0.0.1:80': Address already in use
			<
			after 2s
			< LDS m@1
			> LDS ack
			<
			refused`,
		"the environment refuses one, the content another": synced + `
			want CDS a@1 EDS a@1 LDS l@1 m@1 n@1 RDS r@1
			< LDS m@1 n@1
			> LDS nack: Error adding/updating listener(s) n: no such filter, m: cannot bind '127.0.0.1:80': Permission denied
			<
			after 1s
			< LDS m@1
			> LDS ack
			<
			refused LDS n@1`,
		"a retry that is no longer wanted": synced + `
			want CDS a@1 EDS a@1 LDS l@1 m@1 RDS r@1
			< LDS m@1
			> LDS nack: cannot bind '127.0.0.1:80': Address already in use
			want CDS a@1 EDS a@1 LDS l@1 RDS r@1
			< LDS -m
			> LDS ack
			<
			after 1h
			<`,
		"routes: one by one": `
			want RDS q@1 r@1
			> RDS +q +r
			< RDS q@1 r@1
			> RDS nack: no such thing
			< RDS q@1
			< RDS r@1
			> RDS ack
			> RDS nack: no such thing
			<
			refused RDS r@1`,
		"a refused cluster is not waited for": synced + `
			want CDS a@2 EDS a@1 LDS l@2 RDS r@1
			< CDS a@2
			< EDS a@1
			<
			> CDS nack: no
			< LDS l@2`,
		"what an old listener may need stays": synced + `
			want CDS b@1 EDS b@1 LDS l@2 RDS r@1
			< CDS b@1
			> CDS ack
			< LDS l@2
			> LDS nack: no
			<
			want CDS b@1 EDS b@1 LDS l@3 RDS r@1
			< LDS l@3
			<
			> LDS ack
			< CDS -a`,
		"a refused new listener holds up no removal": synced + `
			want CDS EDS LDS l@1 m@1 RDS r@1
			< LDS m@1
			> LDS nack: no
			< CDS -a`,
		"refused while a newer one is under way": synced + `
			want CDS a@1 EDS a@1 LDS l@2 RDS r@1
			< LDS l@2
			want CDS a@1 EDS a@1 LDS l@3 RDS r@1
			< LDS l@3
			> LDS nack: no
			<
			> LDS nack: no
			<
			refused LDS l@3
			want CDS a@1 EDS a@1 LDS l@1 RDS r@1
			< LDS l@1`,
		"a response with removals alone": synced + `
			want CDS a@1 EDS a@1 RDS r@1
			< LDS -l
			> LDS nack: no
			<
			after 15s
			< LDS -l
			<`,
		"refused and unsubscribed": `
			want EDS a@1
			> EDS +a
			< EDS a@1
			> EDS -a nack: no
			<
			refused`,
		"asked again for what was refused: the last good one": synced + `
			want CDS a@1 EDS a@2 LDS l@1 RDS r@1
			< EDS a@2
			> EDS nack: no
			<
			> EDS +a
			< EDS a@1
			> EDS ack
			<
			refused EDS a@2`,
		"asked again for what was refused, without a good one": `
			want EDS a@1
			> EDS +a
			< EDS a@1
			> EDS nack: no
			<
			> EDS +a
			< EDS -a
			<`,
		"a cluster that changes while its endpoints are refused gets the last good ones": synced + `
			want CDS a@1 EDS a@2 LDS l@1 RDS r@1
			< EDS a@2
			> EDS nack: no
			want CDS a@2 EDS a@2 LDS l@1 RDS r@1
			< CDS a@2
			< EDS a@1
			<`,
		"only the last refused versions are remembered": `
			want EDS a@1
			> EDS +a
			< EDS a@1
			> EDS nack: no
			want EDS a@2
			< EDS a@2
			> EDS nack: no
			want EDS a@3
			< EDS a@3
			> EDS nack: no
			want EDS a@4
			< EDS a@4
			> EDS nack: no
			want EDS a@1
			<
			want EDS a@5
			< EDS a@5
			> EDS nack: no
			want EDS a@1
			< EDS a@1`,
		"a NACK of a stale nonce refuses nothing": synced + `
			want CDS a@1 EDS a@1 LDS l@2 RDS r@1
			< LDS l@2
			> LDS ack
			> LDS ack#3 nack: no
			<
			refused`,
	}
	for name, text := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runScript(t, false, text)
		})
	}
}

func TestRefusedBy(t *testing.T) {
	t.Parallel()
	const invalid = `Proto constraint validation failed (X): name: "b" filters { name: "a" }`
	tests := map[string]struct {
		names  string
		reason string
		want   map[string]string
	}{
		"alone":                       {"a", "whatever", map[string]string{"a": "whatever"}},
		"alone, named":                {"a", "Error adding/updating listener(s) a: why\n", map[string]string{"a": "why"}},
		"alone, and another is named": {"a", "Error adding/updating listener(s) b: why\n", map[string]string{"a": "Error adding/updating listener(s) b: why\n"}},
		"listeners":                   {"a b c", "Error adding/updating listener(s) a: why\nc: no\n", map[string]string{"a": "why", "c": "no"}},
		"clusters":                    {"a b c", "Error adding/updating cluster(s) a: why, b: no", map[string]string{"a": "why", "b": "no"}},
		"not in the order of names": {"a b", "Error adding/updating listener(s) b: cannot bind 'x': no\na: why",
			map[string]string{"a": "why", "b": "cannot bind 'x': no"}},
		"a reason of several parts": {"a b", "Error adding/updating cluster(s) a: one, two: three, b: no",
			map[string]string{"a": "one, two: three", "b": "no"}},
		"names with colons": {"inbound:10.0.0.1:80 inbound:10.0.0.1:8", "Error adding/updating listener(s) inbound:10.0.0.1:80: why\n",
			map[string]string{"inbound:10.0.0.1:80": "why"}},
		"mentioned in the reason":     {"a b", "Error adding/updating cluster(s) a: unknown 'b' here", map[string]string{"a": "unknown 'b' here"}},
		"end of a longer name":        {"b a.b", "Error adding/updating cluster(s) a.b: why", map[string]string{"a.b": "why"}},
		"rules of fields":             {"a b", invalid, map[string]string{"b": invalid}},
		"rules of fields, many lines": {"a b", "validation failed (X):\nname:   \"b\"\n", map[string]string{"b": "validation failed (X):\nname:   \"b\"\n"}},
		"as in Envoy 1.40": {"a b", "goo.gle/debugonly  \nname: \"b\"\nfilters {\n  name: \"a\"\n}\n: validation failed (X)",
			map[string]string{"b": "goo.gle/debugonly  \nname: \"b\"\nfilters {\n  name: \"a\"\n}\n: validation failed (X)"}},
		"rules of endpoints":       {"a b", `validation failed (X): cluster_name: "a"`, map[string]string{"a": `validation failed (X): cluster_name: "a"`}},
		"another field":            {"a b", `validation failed (X): alt_stat_name: "a"`, map[string]string{}},
		"no name":                  {"a b", "malformed IP address: x", map[string]string{}},
		"form known, name unknown": {"a b", "Error adding/updating cluster(s) z: why", map[string]string{}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sent []mention
			for n := range strings.FieldsSeq(tc.names) {
				sent = append(sent, mention{name: n, resource: res(resource.Cluster, n+"@1")})
			}
			if diff := cmp.Diff(tc.want, refusedBy(sent, tc.reason), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("refusedBy() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestIsEnvironmental(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{
		"cannot bind '127.0.0.1:18001': Address already in use":                                   true,
		"cannot bind '192.0.2.9:18113': Cannot assign requested address":                          true,
		"cannot bind '[::]:15006': Cannot assign requested address":                               false,
		"cannot bind '[::]:15006': Address already in use":                                        true,
		"cannot bind '0.0.0.0:80': Permission denied":                                             true,
		"paths must refer to an existing path in the system: 'sds/ca.json' does not exist":        true,
		"Proto constraint validation failed (ListenerValidationError.Address: value is required)": false,
		"Didn't find a registered implementation for name: 'x'":                                   false,
		"": false,
	}
	for reason, want := range tests {
		if got := isEnvironmental(reason); got != want {
			t.Errorf("isEnvironmental(%q) = %v, want %v", reason, got, want)
		}
	}
}

// TestUnnamedRefusalsOfManyClusters counts the responses to a proxy that refuses some clusters and never names them.
// Each state-of-the-world response has all clusters that are good, or may be.
func TestUnnamedRefusalsOfManyClusters(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ clusters, bad, responses int }{
		"none":  {2000, 0, 1},
		"one":   {2000, 1, 2*11 + 1},
		"three": {2000, 3, 3*2*11 + 1},
		"all":   {100, 100, 2 * 100},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad := map[string]bool{}
			var put []*resource.Resource
			for i := range tc.clusters {
				n := fmt.Sprintf("static%04d", i)
				bad[n] = i*tc.bad/tc.clusters != (i+1)*tc.bad/tc.clusters
				put = append(put, res(resource.Cluster, n+"@1"))
			}
			c := newProxy(true)
			c.setDesired(resource.Desired{Shared: resource.NewSet(put...)})
			request := &discoveryv3.DiscoveryRequest{TypeUrl: string(resource.Cluster)}
			responses, last := 0, []*resource.Resource(nil)
			for ; ; responses++ {
				if _, err := c.receiveSotw(request); err != nil {
					t.Fatal(err)
				}
				r := c.next()
				if r == nil {
					break
				}
				request = &discoveryv3.DiscoveryRequest{TypeUrl: string(resource.Cluster), ResponseNonce: r.nonce}
				if slices.ContainsFunc(r.full, func(p *resource.Resource) bool { return bad[p.Name] }) {
					request.ErrorDetail = &statuspb.Status{Message: "no name"}
				} else {
					last = r.full
				}
			}
			if responses > tc.responses {
				t.Errorf("%d responses, want at most %d", responses, tc.responses)
			}
			if len(last) != tc.clusters-tc.bad {
				t.Errorf("the proxy has %d clusters, want %d", len(last), tc.clusters-tc.bad)
			}
		})
	}
}

func TestLongReasonsAreShortened(t *testing.T) {
	t.Parallel()
	got := shorten("begin x" + strings.Repeat("é", maxReason) + "x end")
	if !utf8.ValidString(got) || len(got) > maxReason+len(" … ") {
		t.Errorf("shorten() = %d bytes, valid %v", len(got), utf8.ValidString(got))
	}
	if !strings.HasPrefix(got, "begin") || !strings.HasSuffix(got, "end") {
		t.Errorf("cut() = %q", got)
	}
}

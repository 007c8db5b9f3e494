package agents_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// probeFails is a report that a readiness probe began to fail that long ago.
func probeFails(reason string, ago time.Duration) *agentv1.Verdicts {
	return &agentv1.Verdicts{Probes: []*agentv1.ProbeVerdicts{
		{Container: "app", Probe: "readiness", Total: 3, Reason: reason, Changes: []*agentv1.VerdictChange{
			{Verdict: agentv1.VerdictChange_SUCCESS, Ago: durationpb.New(ago + time.Minute)}, {Verdict: agentv1.VerdictChange_FAILURE, Ago: durationpb.New(ago)},
		}},
		{Container: "app", Probe: "startup"},
	}}
}

func (a *agent) judges(m *agentv1.Verdicts) {
	a.h.t.Helper()
	a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Verdicts{Verdicts: m}})
}

// shown describes the failing readiness probe of db-0.
func shown(m *adminv1.Verdicts) []string {
	var all []string
	for _, p := range m.GetProbes() {
		words := []string{p.GetContainer(), p.GetProbe(), p.GetReason()}
		for _, c := range p.GetChanges() {
			words = append(words, c.GetVerdict(), time.Since(c.GetAt().AsTime()).Round(time.Second).String())
		}
		all = append(all, strings.Join(words, " "))
	}
	return all
}

func TestVerdictsOfProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPodHarness(t, podTokens{"1": db0("1"), "2": db0("2")})
		h.has("1")
		a := h.pod("1")
		a.mustJoin()
		a.connect(false)
		is := func(what string, want ...string) {
			t.Helper()
			h.until(what, func() error { return different(cmp.Diff(want, shown(h.server.Verdicts(db0ID)))) })
		}
		is("nothing is reported")
		long := strings.Repeat("r", 200)
		a.judges(probeFails(long, 3*time.Minute))
		is("a report", "app startup ", "app readiness "+long[:128]+" success 4m0s failure 3m0s")
		if told := h.server.Proxy(db0ID).GetVerdicts().GetSaid(); len(told.GetProbes()) != 2 || told.GetProbes()[0].GetChanges()[1].GetAgo().AsDuration() < 3*time.Minute {
			t.Errorf("other replicas are told %v", told)
		}

		// The verdicts of an earlier session may be wrong by now.
		a.leave()
		is("the agent is disconnected")
		a.connect(false)
		a.heard()
		is("another session has not reported yet")
		a.judges(probeFails("refused", 0))
		is("another session", "app startup ", "app readiness refused success 1m0s failure 0s")

		// Reports take different times to arrive, so the same change seems to be at another time.
		<-time.After(10 * time.Second)
		a.judges(probeFails("timeout", 9*time.Second))
		is("the same changes", "app startup ", "app readiness timeout success 1m10s failure 10s")
		<-time.After(2 * time.Second) // the next report is not delayed
		a.judges(probeFails("HTTP 500", 5*time.Second))
		is("a time that differs by more", "app startup ", "app readiness HTTP 500 success 1m5s failure 5s")

		h.has("2")
		is("another pod has its name")
	})
}

// Reports of an agent that changes them constantly are processed once per second, and the last report is processed.
func TestVerdictsAreTakenOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPodHarness(t, podTokens{"1": db0("1")})
		h.has("1")
		a := h.pod("1")
		a.mustJoin()
		a.connect(false)
		a.judges(probeFails("first", 0))
		a.judges(probeFails("second", 0))
		a.judges(probeFails("last", 0))
		a.heard()
		reason := func() string { return h.server.Verdicts(db0ID).GetProbes()[1].GetReason() }
		if got := reason(); got != "first" {
			t.Errorf("the reason is %q within the second", got)
		}
		<-time.After(time.Second + time.Millisecond)
		if got := reason(); got != "last" {
			t.Errorf("the reason is %q after the second", got)
		}
	})
}

func TestVerdictsRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPodHarness(t, podTokens{"1": db0("1")})
		h.has("1")
		a := h.pod("1")
		a.mustJoin()
		hostile, large := probeFails("", 0), probeFails(strings.Repeat("r", 33<<10), 0)
		hostile.Probes[0].Container = "<script>"
		for want, m := range map[string]*agentv1.Verdicts{"must be the name of a container": hostile, "more than 32768 bytes": large} {
			a.connect(false)
			a.judges(m)
			if got := status.Convert(a.ending()); got.Code() != codes.InvalidArgument || !strings.Contains(got.Message(), want) {
				t.Errorf("the session ends with %v, want InvalidArgument that says %q", got, want)
			}
			a.leave()
		}
	})
}

package probesecurity

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/kubernetes/pkg/probe"
	httpprobe "k8s.io/kubernetes/pkg/probe/http"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// kubelet makes one probe once per second, with the kubelet's own code.
type kubelet struct {
	t          *testing.T
	a          *agent
	path       string
	id         string
	timeout    time.Duration // as the user sets it
	asked      int
	discarded  int // verdicts from Errored responses
	unanswered int
	longest    time.Duration
}

// ask makes one probe, and returns the kubelet's verdict: success, warning, failure, or unknown if the kubelet
// discards the response. answered is false if the response was too late; the kubelet then records a failure.
func (k *kubelet) ask() (verdict probe.Result, answered bool) {
	r, err := http.NewRequestWithContext(k.t.Context(), http.MethodGet, "http://"+k.a.Address+k.path, nil)
	if err != nil {
		k.t.Error(err)
		return probe.Unknown, true
	}
	r.Header.Set("User-Agent", "kube-probe/1.36")
	r.Header.Set(mesh.ProbeHeader, k.id)
	begin, before := time.Now(), k.a.cpu(k.a.Guard())
	verdict, output, err := httpprobe.New(false).Probe(r, k.timeout+time.Second)
	took := time.Since(begin)
	k.longest = max(k.longest, took)
	k.asked++
	if err != nil {
		return probe.Unknown, true
	}
	if verdict != probe.Failure || strings.HasPrefix(output, "HTTP probe failed with statuscode") {
		return verdict, true
	}
	k.excuse(output, took, k.a.cpu(k.a.Guard()).Since(before).Waited)
	return verdict, false
}

// excuse fails the test for an unanswered request, unless the guard spent most of the time waiting for a CPU. The
// guard responds at the latest half a second before the kubelet's timeout, but without a CPU no program can, and the
// kubelet's own checks would fail, too.
func (k *kubelet) excuse(why string, took, waited time.Duration) {
	if !strings.Contains(why, "Client.Timeout exceeded") || waited < took/2 {
		k.t.Errorf("%q was not answered in %s, %s of which the guard waited for a processor: %s", k.id, took, waited, why)
		return
	}
	k.t.Logf("%q was not answered in %s, %s of which the guard waited for a processor", k.id, took, waited)
}

// check makes one probe with a known verdict. An agent without a verdict responds Errored, which the kubelet
// discards.
func (k *kubelet) check(round int, want probe.Result) {
	switch got, answered := k.ask(); {
	case !answered:
		k.unanswered++
	case got == probe.Unknown:
		k.discarded++
	case got != want:
		k.t.Errorf("round %d: verdict of %q = %s, want %s", round, k.id, got, want)
	}
}

// report fails the test if too many probes had no verdict although the agent had enough CPU.
func (k *kubelet) report(hadCPU bool) {
	k.t.Logf("the kubelet's %d probes of %q: %d discarded, %d unanswered, the longest took %s",
		k.asked, k.id, k.discarded, k.unanswered, k.longest.Round(time.Millisecond))
	if k.asked < 3 {
		k.t.Errorf("the kubelet asked for %q %d times: the flood was over too soon", k.id, k.asked)
	}
	most := k.asked / 4
	if k.id == "slow" { // each probe uses its whole timeout, and half a second later the guard responds Errored
		most = k.asked / 2
	}
	if hadCPU && k.unanswered > 0 {
		k.t.Errorf("%d of %d probes of %q were not answered", k.unanswered, k.asked, k.id)
	}
	if unknown := k.discarded + k.unanswered; hadCPU && unknown > most {
		k.t.Errorf("%d of %d verdicts of %q are unknown, want at most %d", unknown, k.asked, k.id, most)
	}
}

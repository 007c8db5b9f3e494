package peers

import (
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
)

// typical returns a replica's message about a pod with a session and an ADS stream.
func typical(i int) *peerv1.Proxy {
	now := timestamppb.Now()
	return &peerv1.Proxy{
		Id: fmt.Sprintf("default/web-7c5b9d6f4-%05d.shop", i), Instance: "7f0c3d3e-5c1b-4c39-9d5e-3f0b8f6f7a10",
		Certificate: &peerv1.Certificate{Serial: "1dd37803d5a691bdacb9bf9ab1dd3780", Ca: "1dd37803d5a691bdacb9bf9ab1dd3780", NotAfter: now, Path: "/ns/shop/sa/web"},
		Session: &peerv1.Session{
			Order: &peerv1.Order{Time: now.AsTime().UnixNano(), Count: 1}, Open: true, Since: now, Process: "JRSDQ4ZCMXQ6QGHUXBCVJUFLKQ", Address: "10.88.1.3",
			Version: "0.2.0", EnvoyVersion: "1.40.0", Features: []string{"service-probes", "queries", "pong", "endpoints", "probe-ports"},
			BundleId: "1dd37803d5a691bdacb9bf9ab1dd3780", BundleEpoch: now.GetSeconds(),
		},
		Listeners: &peerv1.Listeners{Order: &peerv1.Order{Time: now.AsTime().UnixNano()}, Accepted: []string{"10.88.1.3:8080", "10.88.1.3:15006"}},
	}
}

// BenchmarkSnapshot starts a replica that receives the state of all proxies, and measures until it has them. The CPU
// time is the sum of both replicas.
func BenchmarkSnapshot(b *testing.B) {
	for _, count := range []int{1000, 5000} {
		b.Run(strconv.Itoa(count), func(b *testing.B) {
			certificate := newCertificate(b)
			a := start(b, certificate, "a")
			size := 0
			for i := range count {
				m := typical(i)
				size += proto.Size(m)
				a.knows(m)
			}
			before := processorTime(b)
			for i := 0; b.Loop(); i++ {
				r := start(b, certificate, fmt.Sprint("b", i))
				a.Follow(map[string]string{r.name: r.address})
				for len(r.HeardProxies()) < count {
					<-r.heard
				}
				r.stop()
			}
			b.ReportMetric(float64(size)/float64(count), "B/proxy")
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N)/1e6, "cpu-ms/op")
		})
	}
}

// BenchmarkChange changes one proxy, and measures until the other replica has received the change.
func BenchmarkChange(b *testing.B) {
	certificate := newCertificate(b)
	a, r := start(b, certificate, "a"), start(b, certificate, "b")
	a.Follow(map[string]string{r.name: r.address})
	m := typical(1)
	m.Awaited = true
	a.knows(m)
	for len(r.HeardProxies()) == 0 {
		<-r.heard
	}
	before := processorTime(b)
	for b.Loop() {
		a.knows(m)
		for a.Behind(m.GetId()) {
			<-a.heard
		}
	}
	b.ReportMetric(float64(processorTime(b)-before)/float64(b.N)/1e3, "cpu-µs/op")
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

package probe

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// tableSize is large enough for probes without a pause: each entry is probed less than ten times a
// second.
const tableSize = 600

// BenchmarkProbe makes one probe after the other, or eight at once.
func BenchmarkProbe(b *testing.B) {
	program, a := buildAgent(b), startApp(b)
	for _, kind := range kinds {
		table, err := a.table(tableSize, kind)
		if err != nil {
			b.Fatal(err)
		}
		for _, name := range []string{subjectDirect, subjectNaive, subjectHandler, subjectSonde} {
			b.Run(fmt.Sprintf("kind=%s/subject=%s", kind, name), func(b *testing.B) {
				s := startSubject(b, name, program, a, table)
				c := newClient(s, a, kind, 0, tableSize)
				if _, err := c.run(b.Context(), 2*tableSize, 1); err != nil { // warm up
					b.Fatal(err)
				}
				for _, atOnce := range []int{1, 8} {
					b.Run(fmt.Sprintf("at-once=%d", atOnce), func(b *testing.B) { measure(b, s, c, a[kind], atOnce) })
				}
			})
		}
	}
}

// measure makes b.N probes of a subject.
func measure(b *testing.B, s *subject, c *client, port, atOnce int) {
	b.Helper()
	waiting, err := timeWait(port)
	if err != nil {
		b.Fatal(err)
	}
	before, err := s.cpu()
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	times, err := c.run(b.Context(), b.N, atOnce)
	b.StopTimer()
	if err != nil {
		b.Fatal(err)
	}
	after, err := s.cpu()
	if err != nil {
		b.Fatal(err)
	}
	waitingNow, err := timeWait(port)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(times[len(times)/2]), "p50-ns")
	b.ReportMetric(float64(times[len(times)*99/100]), "p99-ns")
	b.ReportMetric(float64(after-before)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(max(0, float64(waitingNow-waiting)/float64(b.N)), "time-wait/op")
}

// timeWait counts the connections in TIME_WAIT to a port of the application.
func timeWait(port int) (int, error) {
	data, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return 0, err
	}
	n := 0
	remote := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) > 3 && f[3] == "06" && strings.HasSuffix(f[2], remote) {
			n++
		}
	}
	return n, nil
}

// usualEntries is the number of probes of a pod with three containers, each with all three kinds of probes.
const usualEntries = 9

// BenchmarkMemory probes each entry of a table, eight at once. It measures the memory at rest before, after a few
// probes of each entry, and afterwards.
func BenchmarkMemory(b *testing.B) {
	program, a := buildAgent(b), startApp(b)
	for _, bc := range []struct {
		subject string
		entries int
	}{{subjectSonde, usualEntries}, {subjectSonde, tableSize}, {subjectNaive, tableSize}} {
		b.Run(fmt.Sprintf("entries=%d/subject=%s", bc.entries, bc.subject), func(b *testing.B) {
			each := bc.entries / len(kinds)
			table, err := a.table(each, kinds...)
			if err != nil {
				b.Fatal(err)
			}
			s := startSubject(b, bc.subject, program, a, table)
			var clients []*client
			for i, kind := range kinds {
				c := newClient(s, a, kind, i*each, each)
				clients = append(clients, c)
				if _, err := c.run(b.Context(), 3*each, 1); err != nil {
					b.Fatal(err)
				}
			}
			rest, err := s.memory(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				for _, c := range clients {
					if _, err := c.run(b.Context(), each, 8); err != nil {
						b.Fatal(err)
					}
				}
			}
			after, err := s.memory(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(rest.RssAnon, "rest-RssAnon-bytes")
			b.ReportMetric(rest.VmRSS, "rest-VmRSS-bytes")
			b.ReportMetric(after.RssAnon, "RssAnon-bytes")
			b.ReportMetric(after.VmRSS, "VmRSS-bytes")
		})
	}
}

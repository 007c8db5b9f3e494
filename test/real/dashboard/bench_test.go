package dashboard

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/dashboard"
	"github.com/sonde-mesh/sonde/test/must"
)

// size is the number of pods, each of its own workload, with three probes.
const size = 5000

// limits of the medians of all rounds.
var limits = map[string]float64{"ms/first-view": 2000, "ms/change": 200, "blanks": 0, "MB/page": 200}

// BenchmarkPage measures the page of a large mesh in the browser: the time until the first view, the time from the
// arrival of a change at sondectl until it shows, frames with a blank while it scrolls, and the memory of the page's
// process.
func BenchmarkPage(b *testing.B) {
	s := newStage()
	var pods []mesh.ID
	for i := range size {
		pods = append(pods, s.pod(fmt.Sprintf("team-%02d", i%40), fmt.Sprintf("application-%04d-5d9c7b8f6d-x2x4z", i)))
	}
	s.build()
	for i, id := range pods {
		s.service(fmt.Sprintf("team-%02d", i%40), fmt.Sprintf("application-%04d", i), []mesh.ID{id})
		s.passes(id, i%7)
	}
	s.build()
	s.serve(b)
	address := s.dashboard(b, noClusters)
	browser := newBrowser(b)
	at, rounds := 0, map[string][]float64{}
	for b.Loop() {
		note := func(unit string, is float64) { rounds[unit] = append(rounds[unit], is) }
		note("ms/first-view", browser.opens(b, address, size))
		var changes []float64
		for range 5 {
			at += 997
			changes = append(changes, s.changes(b, browser, address, pods[at%size]))
		}
		note("ms/change", median(changes))
		note("blanks", browser.scrolls(b))
		note("MB/page", browser.memory(b))
	}
	for unit, all := range rounds {
		b.Logf("%s: %.0f", unit, all)
		b.ReportMetric(median(all), unit)
		if is := median(all); is > limits[unit] {
			b.Errorf("%s: %.0f, must be at most %.0f", unit, is, limits[unit])
		}
	}
}

func median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

// passes reports that all probes of a pod have passed for a while, the readiness probe after some failures.
func (s *stage) passes(id mesh.ID, failures int) {
	var changes []string
	for i := range failures {
		changes = append(changes, fmt.Sprintf("failure %dm", 60-2*i), fmt.Sprintf("success %dm", 59-2*i))
	}
	s.reports(id, s.probe("app", "startup", "", "success 25h"), s.probe("app", "liveness", "", "success 25h"),
		s.probe("app", "readiness", "", append([]string{"success 25h"}, changes...)...))
}

// opens opens the page in a new tab, and returns after how many milliseconds it shows rows.
func (br *browser) opens(b *testing.B, address string, rows int) (ms float64) {
	b.Helper()
	br.do(b, fmt.Sprintf(`await page.goto('about:blank'); await page.goto(%q); await page.waitForSelector('.fixed tbody th');
		return await page.evaluate((rows) => {
			if (!document.querySelector('.count').textContent.includes(String(rows))) throw new Error('rows are missing: ' + document.querySelector('.count').textContent);
			return performance.now();
		}, %d)`, address, rows), &ms)
	return ms
}

// changes makes a probe fail, and returns how many milliseconds after its arrival at sondectl the page has shown it.
func (s *stage) changes(b *testing.B, br *browser, address string, id mesh.ID) float64 {
	b.Helper()
	_, name := mesh.SplitID(id)
	workload, _, _ := strings.Cut(name, "-5d9c")
	br.run(b, fmt.Sprintf(`await page.evaluate((name) => {
		window.shownAt = new Promise((resolve) => {
			const look = () => document.querySelector('.fixed tbody th')?.textContent.includes(name) && resolve(Date.now());
			new MutationObserver(look).observe(document.body, {childList: true, subtree: true, characterData: true});
		}); }, %q)`, workload))
	before := revision(b, address)
	s.reports(id, s.probe("app", "readiness", "dial tcp 10.0.0.1:8080: connect: connection refused", "success 25h", "failure 0s"))
	var arrived time.Time
	for arrived.IsZero() {
		if revision(b, address) != before {
			arrived = time.Now()
		}
	}
	var shown float64
	br.do(b, `return await page.evaluate(() => window.shownAt)`, &shown)
	s.passes(id, 0)
	br.run(b, fmt.Sprintf(`await page.waitForFunction((name) => !document.querySelector('.fixed tbody th').textContent.includes(name), %q)`, workload))
	return max(0, shown-float64(arrived.UnixMicro())/1000)
}

// revision returns the revision of the workloads at sondectl.
func revision(b *testing.B, address string) string {
	b.Helper()
	base, token, _ := strings.Cut(address, "#token=")
	r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, base+"api/state", http.NoBody)
	must.Do(b, err)
	r.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(r)
	must.Do(b, err)
	defer func() { _ = response.Body.Close() }() // it has been read
	body, err := io.ReadAll(response.Body)
	must.Do(b, err)
	var index struct {
		Sections map[string]dashboard.Section `json:"sections"`
	}
	must.Do(b, json.Unmarshal(body, &index))
	time.Sleep(10 * time.Millisecond) // the limit is 200 requests per second
	return index.Sections["workloads"].Revision
}

// scrolls scrolls down and up by a screen in each frame, and to distant places. It returns how many frames had a part
// of the window without a row after they were drawn.
func (br *browser) scrolls(b *testing.B) (blanks float64) {
	b.Helper()
	br.do(b, `return await page.evaluate(async () => {
		const drawn = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
		const end = document.documentElement.scrollHeight - innerHeight;
		const places = [];
		for (let y = 0; y < 60 * innerHeight; y += innerHeight * 0.8) places.push(y);
		places.push(...places.slice().reverse(), end, end / 2, end / 3, 0, end, 0);
		let blanks = 0;
		for (const y of places) {
			scrollTo(0, y);
			await drawn();
			const {top, bottom} = document.querySelector('.fixed tbody').getBoundingClientRect();
			for (let at = 5; at < innerHeight; at += 50) {
				if (at < top || at > bottom) continue;
				const row = document.elementFromPoint(innerWidth / 3, at)?.closest('tr');
				if (!row || row.matches('.space')) blanks++;
			}
		}
		return blanks;
	})`, &blanks)
	return blanks
}

// memory returns the memory of the page's process that it shares with no other, in MB.
func (br *browser) memory(b *testing.B) float64 {
	b.Helper()
	var renderers []int
	br.do(b, `const cdp = await browser.newBrowserCDPSession(); const {processInfo} = await cdp.send('SystemInfo.getProcessInfo'); await cdp.detach();
		return processInfo.filter((p) => p.type === 'renderer').map((p) => p.id)`, &renderers)
	most := 0.0
	for _, pid := range renderers { // one may be spare
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		must.Do(b, err)
		kb := 0
		for _, found := range regexp.MustCompile(`Private_\w+:\s+(\d+) kB`).FindAllStringSubmatch(string(text), -1) {
			n, err := strconv.Atoi(found[1])
			must.Do(b, err)
			kb += n
		}
		most = max(most, float64(kb)/1000)
	}
	if most == 0 {
		b.Fatal("the page has no process")
	}
	return most
}

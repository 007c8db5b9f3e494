package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

var views = []string{"workloads", "services", "proxies", "restarts", "watchdog", "controlplane", "problems"}

// TestDashboard makes a mesh ill, and looks at the page.
func TestDashboard(t *testing.T) {
	m := harness.New(t, harness.Options{Programs: programs, MeshYAML: harness.MeshYAML("STRICT")})
	checked := map[string]any{"tcpSocket": map[string]any{}, "periodSeconds": 1, "failureThreshold": 1}
	virtual, err := m.FreeAddress()
	must.Do(t, err)
	_, port, err := net.SplitHostPort(virtual)
	must.Do(t, err)
	table := `KUMA_DATAPLANE_PROBES=[{"container":"app","type":"readiness","tcpSocket":{"port":1}},{"container":"app","type":"startup","tcpSocket":{"port":2}}]`
	proxies := must.Add(t, m,
		harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}, AgentArgs: []string{"--virtual-probes-port=" + port}, AgentEnv: []string{"INSTANCE_IP=127.0.0.1", table}},
		harness.ProxyOptions{Name: "b-1", Service: "b", ServiceProbe: checked}, harness.ProxyOptions{Name: "b-2", Service: "b", ServiceProbe: checked})
	b1 := proxies[1]
	address, dashboard, err := m.Dashboard(t.Context())
	must.Do(t, err)
	b := newBrowser(t)

	t.Run("the token leaves the address bar", func(t *testing.T) {
		b.run(t, `await page.goto(`+fmt.Sprintf("%q", address)+`)`)
		b.sees(t, "ok: 1 mesh, 2 services, 3 of 3 proxies healthy", "passing", "not checked")
		var url string
		b.do(t, `return page.url()`, &url)
		if !strings.HasSuffix(url, "/#/workloads") {
			t.Errorf("the address is %s", url)
		}
	})
	t.Run("an application whose probe fails", func(t *testing.T) {
		b1.App.Kill()
		b.sees(t, "failing", "not ok: 1 error", "application probe failed")
		b.run(t, `await page.click('button.cell:has-text("failing")'); await page.waitForSelector('.detail :focus')`)
		b.sees(t, "Readiness of b", "connection refused", "tcpSocket "+b1.AppAddress, "sondectl why dataplane/b-1 --mesh default")
		sinceWhen(t, m, b)
		worstFirst(t, b)
		shots(t, b, "failing")
		b.run(t, `await page.keyboard.press('Escape'); await page.waitForSelector('.detail', {state: 'detached'})`)
		must.Do(t, b1.StartApp(t.Context()))
		b.sees(t, "ok: 1 mesh, 2 services, 3 of 3 proxies healthy")
	})
	t.Run("a probe of a container fails", func(t *testing.T) {
		if code := asked(t, "http://127.0.0.1:"+port+"/tcp/1", "User-Agent", "kube-probe/1.37"); code != http.StatusServiceUnavailable {
			t.Fatalf("the probe of a closed port: status %d", code)
		}
		must.Poll(t, "sondectl to say which probe fails, and since when", func(ctx context.Context) error {
			text, err := m.Ctl(ctx, "get", "proxy", "a-1", "-o", "wide")
			if err == nil && !regexp.MustCompile(`readiness probe of container app \(for at least \d+[sm]\) fails: .*connection refused`).MatchString(text) {
				err = errors.New(text)
			}
			return err
		})
		text, err := m.Ctl(t.Context(), "get", "proxy", "a-1", "-o", "jsonpath={.verdicts.probes[*].probe} {.verdicts.probes[*].total}")
		if must.Do(t, err); text != "startup readiness 0 1" {
			t.Errorf("the probes are %q", text)
		}
	})
	t.Run("a drained endpoint", func(t *testing.T) {
		_, err := m.Ctl(t.Context(), "drain", "dataplane/b-2")
		must.Do(t, err)
		b.open(t, "services")
		b.run(t, `await page.click('tr:has(th span:text-is("b")) button.cell')`)
		b.sees(t, "some are out", "draining", "It gets no traffic")
		_, err = m.Ctl(t.Context(), "undrain", "dataplane/b-2")
		must.Do(t, err)
		b.run(t, `await page.waitForFunction(() => !document.body.innerText.includes('some are out'))`)
	})
	t.Run("a listener that Envoy refuses", func(t *testing.T) {
		c := must.Prepare(t, m, harness.ProxyOptions{Name: "c-1", Service: "c", ServiceProbe: checked})
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", c.Inbound)
		must.Do(t, err)
		must.Do(t, m.Put("c-1.yaml", c.YAML()))
		must.Do(t, c.StartApp(t.Context()))
		must.Do(t, c.StartAgent(t.Context()))
		b.open(t, "proxies")
		b.sees(t, "c-1", "refuses 1")
		b.run(t, `await page.click('tr:has(th span:text-is("c-1")) button.cell')`)
		b.sees(t, "Refused: listeners inbound:"+c.Inbound, "cannot bind")
		b.open(t, "workloads")
		b.sees(t, "not reported")
		must.Do(t, l.Close())
		must.Do(t, m.Remove("c-1.yaml"))
	})
	t.Run("filter and address bar", func(t *testing.T) {
		b.open(t, "workloads")
		b.run(t, `await page.fill('input[type=search]', 'b-2'); await page.reload(); await page.waitForSelector('tbody th')`)
		var found struct {
			URL   string   `json:"url"`
			Query string   `json:"query"`
			Rows  []string `json:"rows"`
		}
		b.do(t, `return {url: page.url(), query: await page.inputValue('input[type=search]'), rows: await page.locator('tbody th').allInnerTexts()}`, &found)
		if !strings.HasSuffix(found.URL, "/#/workloads?q=b-2") || found.Query != "b-2" || len(found.Rows) != 1 || !strings.HasPrefix(found.Rows[0], "b ") {
			t.Errorf("after the page was loaded again: %+v", found)
		}
		b.run(t, `await page.fill('input[type=search]', '')`)
	})
	t.Run("each view, for everyone", func(t *testing.T) {
		for _, view := range views {
			b.open(t, view)
			shots(t, b, view)
		}
		b.open(t, "watchdog")
		b.sees(t, "WatchedClusters are read with a kubeconfig only, and --address")
	})
	t.Run("the control plane is killed, and comes back", func(t *testing.T) {
		b.open(t, "workloads")
		b.sees(t, "passing")
		m.ControlPlane.Kill()
		b.sees(t, "Blind since", "Below is the state of", "unknown")
		b.run(t, `await page.waitForSelector('main.old')`)
		shots(t, b, "blind")
		b1.App.Kill() // while the page is blind
		must.Do(t, m.StartControlPlane(t.Context()))
		b.sees(t, "failing")
		b.run(t, `await page.waitForFunction(() => !document.body.innerText.includes('Blind') && !document.querySelector('main.old'))`)
		must.Do(t, b1.StartApp(t.Context()))
	})
	t.Run("others see nothing", func(t *testing.T) { seesOnlyWithToken(t, b, address) })
	t.Run("a snapshot", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "mesh.html")
		_, err := m.Ctl(t.Context(), "dashboard", "--once", file)
		must.Do(t, err)
		var text string
		b.do(t, `const other = await (await browser.newContext({javaScriptEnabled: false})).newPage(); await other.goto(`+fmt.Sprintf("%q", "file://"+file)+`);
			const text = await other.innerText('body'); await other.context().close(); return text`, &text)
		if !strings.Contains(text, "It does not change.") || !strings.Contains(text, "b-1") {
			t.Errorf("it says %q", text)
		}
	})
	t.Run("sondectl ends", func(t *testing.T) {
		dashboard.Kill()
		b.sees(t, "Blind since", "sondectl dashboard does not answer")
		var complaints []string
		b.do(t, `return complaints.filter((c) => !c.includes('ERR_CONNECTION_REFUSED') && !c.includes('status of 401'))`, &complaints)
		if len(complaints) > 0 {
			t.Errorf("the browser complains: %q", complaints)
		}
	})
}

// worstFirst looks for what is wrong before the rest, and alone when its verdict is chosen, which the address keeps.
func worstFirst(t *testing.T, b *browser) {
	t.Helper()
	var found struct {
		All    []string `json:"all"`
		Chosen []string `json:"chosen"`
		URL    string   `json:"url"`
	}
	b.do(t, `const rows = () => page.locator('.fixed tbody th').allInnerTexts();
		const all = await rows(); await page.selectOption('label:has-text("Verdict") select', 'failing');
		await page.waitForFunction((n) => document.querySelectorAll('.fixed tbody th').length < n, all.length);
		const found = {all, chosen: await rows(), url: page.url()};
		await page.selectOption('label:has-text("Verdict") select', ''); return found`, &found)
	if len(found.All) < 2 || !strings.HasPrefix(found.All[0], "b ") || len(found.Chosen) != 1 || found.Chosen[0] != found.All[0] || !strings.Contains(found.URL, "state=failing") {
		t.Errorf("the rows are %q, of which fail %q, at %s", found.All, found.Chosen, found.URL)
	}
}

// sinceWhen looks for the changes of b-1's probe in the open cell, and for the time since when it fails in the table
// and in the output of sondectl.
func sinceWhen(t *testing.T, m *harness.Machine, b *browser) {
	t.Helper()
	var found struct {
		Cell    string   `json:"cell"`
		Changes []string `json:"changes"`
		Strip   []string `json:"strip"`
	}
	b.do(t, `await page.waitForSelector('.detail .changes li:last-child:has-text("failing")');
		const failing = page.locator('.detail li:has(h3:text-is("b-1"))');
		return {cell: await page.locator('button.cell:has-text("failing")').innerText(), changes: await failing.locator('.changes li').allInnerTexts(),
			strip: await failing.locator('.strip rect').evaluateAll((all) => all.map((r) => r.getAttribute('class')))}`, &found)
	first, last := found.Changes[0], found.Changes[len(found.Changes)-1]
	if !strings.Contains(first, " since at least ") || !regexp.MustCompile(`^failing since \d\d:\d\d:\d\d \(\d+[sm]\)$`).MatchString(last) || !slices.Contains(found.Strip, "good") || found.Strip[len(found.Strip)-1] != "bad" {
		t.Errorf("the changes are %q, drawn as %q", found.Changes, found.Strip)
	}
	if !regexp.MustCompile(`1/2 \d+[sm]`).MatchString(found.Cell) {
		t.Errorf("the cell says %q", found.Cell)
	}
	why, err := m.Ctl(t.Context(), "why", "dataplane/b-1")
	if must.Do(t, err); !regexp.MustCompile(`its probe has failed for \d+[sm]`).MatchString(why) {
		t.Errorf("sondectl why says %q", why)
	}
}

// seesOnlyWithToken opens the page as others would, and as a second tab.
func seesOnlyWithToken(t *testing.T, b *browser, address string) {
	t.Helper()
	base, _, _ := strings.Cut(address, "#")
	for name, at := range map[string]string{"without the token": base, "with a wrong token": base + "#token=wrong"} {
		var text string
		b.do(t, `const other = await (await browser.newContext()).newPage(); await other.goto(`+fmt.Sprintf("%q", at)+`);
			await other.waitForSelector('[role=alert]'); const text = await other.innerText('body');
			await other.goto(`+fmt.Sprintf("%q", address)+`); await other.waitForURL('**/#/workloads'); await other.waitForSelector('tbody th');
			await other.context().close(); return text`, &text)
		if !strings.Contains(text, "open the") || strings.Contains(text, "b-1") {
			t.Errorf("%s: the page says %q", name, text)
		}
	}
	var second string
	b.do(t, `const tab = await page.context().newPage(); await tab.goto(`+fmt.Sprintf("%q", address)+`);
		await tab.waitForSelector('tbody th'); const text = await tab.innerText('tbody'); await tab.close(); return text`, &second)
	if !strings.Contains(second, "Readiness of b") {
		t.Errorf("a second tab says %q", second)
	}
	for header, value := range map[string]string{"Host": "evil.example", "Origin": "http://evil.example"} {
		if code := asked(t, base+"api/state", header, value); code != http.StatusForbidden {
			t.Errorf("%s %s: status %d", header, value, code)
		}
	}
}

// shots checks the page for what keeps people from using it, and keeps pictures, in both widths, light and dark.
func shots(t *testing.T, b *browser, name string) {
	t.Helper()
	for _, width := range []int{390, 1280} {
		for _, scheme := range []string{"dark", "light"} {
			file := filepath.Join(t.ArtifactDir(), fmt.Sprintf("%s-%d-%s.png", name, width, scheme))
			b.run(t, fmt.Sprintf(`await page.setViewportSize({width: %d, height: 800}); await page.emulateMedia({colorScheme: %q}); await page.screenshot({path: %q})`, width, scheme, file))
			if info, err := os.Stat(file); err != nil || info.Size() == 0 {
				t.Errorf("no picture: %v", err)
			}
			var violations []string
			if b.do(t, `return axe()`, &violations); len(violations) > 0 {
				t.Errorf("%s, width %d, %s: %q", name, width, scheme, violations)
			}
		}
	}
}

// asked returns the status of a request with another header.
func asked(t *testing.T, url, header, value string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	must.Do(t, err)
	r.Header.Set(header, value)
	if header == "Host" {
		r.Host = value
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(r)
	must.Do(t, err)
	must.Do(t, response.Body.Close())
	return response.StatusCode
}

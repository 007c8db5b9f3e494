package dashboard

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sonde-mesh/sonde/test/must"
)

// required is set where a browser must be available, as by .ci/run nightly: then no test is skipped.
const required = "SONDE_TEST_BROWSER"

// notHere ends a test that this machine cannot run.
func notHere(t testing.TB, why string) {
	t.Helper()
	if os.Getenv(required) == "required" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// browser is Chromium, driven by a process of Node.js.
type browser struct {
	requests io.Writer
	answers  *bufio.Reader
}

// newBrowser starts a browser, which ends with the test.
func newBrowser(t testing.TB) *browser {
	t.Helper()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		notHere(t, "apt-get install chromium: "+err.Error())
	}
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			notHere(t, "apt-get install nodejs npm: "+err.Error())
		}
	}
	directory := t.TempDir() // here npm must not install what other tools would read
	must.Do(t, os.CopyFS(directory, os.DirFS("browser")))
	install := exec.CommandContext(t.Context(), "npm", "ci", "--silent")
	install.Dir, install.Stderr = directory, os.Stderr
	must.Do(t, install.Run())

	node := exec.CommandContext(t.Context(), "node", filepath.Join(directory, "browser.mjs"), chromium)
	node.Stderr = os.Stderr
	requests, err := node.StdinPipe()
	must.Do(t, err)
	answers, err := node.StdoutPipe()
	must.Do(t, err)
	must.Do(t, node.Start())
	t.Cleanup(func() {
		_ = requests.Close() // it ends the browser, and itself
		_ = node.Wait()      // or the end of the test has killed it
	})
	return &browser{requests, bufio.NewReader(answers)}
}

// do runs the body of an async function of page, browser, axe and complaints, and decodes what it returns.
func (b *browser) do(t testing.TB, body string, into any) {
	t.Helper()
	line, err := json.Marshal(body)
	must.Do(t, err)
	_, err = b.requests.Write(append(line, '\n'))
	must.Do(t, err)
	text, err := b.answers.ReadBytes('\n')
	if err != nil {
		t.Fatalf("%s: the browser has ended: %v", body, err)
	}
	var answer struct {
		Value json.RawMessage `json:"value"`
		Error string          `json:"error"`
	}
	must.Do(t, json.Unmarshal(text, &answer))
	if answer.Error != "" {
		t.Fatalf("%s: %s", body, answer.Error)
	}
	if into != nil {
		must.Do(t, json.Unmarshal(answer.Value, into))
	}
}

// run is do without a result.
func (b *browser) run(t testing.TB, body string) {
	t.Helper()
	b.do(t, body, nil)
}

// sees waits until the page has all texts.
func (b *browser) sees(t testing.TB, texts ...string) {
	t.Helper()
	list, err := json.Marshal(texts)
	must.Do(t, err)
	b.run(t, `await page.waitForFunction((texts) => texts.every((t) => document.body.innerText.includes(t)), `+string(list)+`)`)
}

// open goes to a view.
func (b *browser) open(t testing.TB, view string) {
	t.Helper()
	b.run(t, `await page.evaluate(() => { location.hash = '#/`+view+`'; });
		await page.waitForSelector('nav a[aria-current][href="#/`+view+`"]');
		await page.waitForSelector('main > *:not(h2)');`)
}

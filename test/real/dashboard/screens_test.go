package dashboard

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/dashboard"
	"github.com/sonde-mesh/sonde/test/must"
)

var updateScreenshots = flag.Bool("update-screenshots", false, "write the pictures in docs/images. All others are written with -artifacts, below -outputdir")

// screens are what a stranger must see in each view, within a moment. open is the row whose cell is opened.
var screens = []struct {
	view, open string
	sees       []string
}{
	{"workloads", "", []string{"failing", "held", "cannot fail", "warning", "not reported", "1/4"}},
	{"services", "", []string{"no traffic", "some are out", "0/2", "3/4"}},
	{"proxies", "", []string{"lost", "refuses 1"}},
	{"restarts", "", []string{"waiting", "granted", "1 of 1", "closed"}},
	{"watchdog", "", []string{"lost (all)", "seen"}},
	{"controlplane", "", []string{"sonde-cp-2 disconnected", "sonde-cp-1"}},
	{"workloads", "Readiness of shop/checkout", []string{"connection refused", "failing since", "sondectl why pod/checkout"}},
	{"workloads", "Liveness of payments/ledger", []string{"Envoy accepts each connection to port 5432", "remove the annotation"}},
}

// TestScreens shows a mesh on Kubernetes in which something of each kind is wrong.
func TestScreens(t *testing.T) {
	s := scene()
	s.serve(t)
	b := newBrowser(t)
	b.run(t, fmt.Sprintf(`await page.goto(%q); await page.waitForSelector('tbody th')`, s.dashboard(t, s.watched().open)))
	for _, screen := range screens {
		b.run(t, `await page.setViewportSize({width: 1280, height: 800})`)
		b.open(t, screen.view)
		name := screen.view
		if screen.open != "" {
			b.run(t, fmt.Sprintf(`await page.click('button.cell[title="%s"]'); await page.waitForSelector('.detail')`, screen.open))
			name = "cell-" + filepath.Base(screen.open)
		}
		b.sees(t, screen.sees...)
		shots(t, b, name)
		if *updateScreenshots {
			picture(t, b, name, 1280, 720, "light")
			if name == "workloads" {
				picture(t, b, name, 390, 760, "dark")
			}
		}
	}
}

const (
	// maxPicture limits the pictures of the documentation, in bytes.
	maxPicture = 60 << 10
	maxColours = 40
)

// picture writes a picture of the documentation.
func picture(t *testing.T, b *browser, name string, width, height int, scheme string) {
	t.Helper()
	var shot []byte
	b.do(t, fmt.Sprintf(`await page.setViewportSize({width: %d, height: %d}); await page.emulateMedia({colorScheme: %q}); return (await page.screenshot()).toString('base64')`, width, height, scheme), &shot)
	full, err := png.Decode(bytes.NewReader(shot))
	must.Do(t, err)
	var out bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	must.Do(t, encoder.Encode(&out, fewColours(full)))
	if out.Len() > maxPicture {
		t.Errorf("%s: the picture has %d bytes, must have at most %d", name, out.Len(), maxPicture)
	}
	file := fmt.Sprintf("../../../docs/images/dashboard-%s.png", name)
	if scheme == "dark" {
		file = fmt.Sprintf("../../../docs/images/dashboard-%s-%d-%s.png", name, width, scheme)
	}
	must.Do(t, os.WriteFile(file, out.Bytes(), 0o644))
}

// fewColours returns a picture with the most frequent colours, in which all others are the nearest of them.
func fewColours(full image.Image) *image.Paletted {
	counts := map[color.RGBA]int{}
	bounds := full.Bounds()
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(full.At(x, y)).(color.RGBA) }
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[at(x, y)]++
		}
	}
	frequent := slices.SortedFunc(maps.Keys(counts), func(a, b color.RGBA) int {
		return cmp.Or(counts[b]-counts[a], cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)))
	})
	var palette color.Palette
	for _, c := range frequent[:min(maxColours, len(frequent))] {
		palette = append(palette, c)
	}
	few, nearest := image.NewPaletted(bounds, palette), map[color.RGBA]uint8{}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			c := at(x, y)
			index, known := nearest[c]
			if !known {
				index = uint8(palette.Index(c))
				nearest[c] = index
			}
			few.SetColorIndex(x, y, index)
		}
	}
	return few
}

// TestHostileTexts shows texts that others choose as text, which does not widen the page.
func TestHostileTexts(t *testing.T) {
	s := newStage()
	id := s.pod("shop", "web")
	s.build()
	text := `<img src=x onerror="document.body.remove()"></script>` + "\u202Egnp.exe 👩‍👩‍👧‍👦 " + strings.Repeat("Ω", 10<<10)
	s.reports(id, s.probe(text, "liveness", text, "success 1h", "failure 1m"))
	s.service(text, text, []mesh.ID{id})
	s.build()
	s.serve(t)
	b := newBrowser(t)
	b.run(t, fmt.Sprintf(`await page.goto(%q); await page.click('button.cell:has-text("failing")')`, s.dashboard(t, noClusters)))
	for _, view := range []string{"", "services", "problems"} {
		if view != "" {
			b.open(t, view)
		}
		b.sees(t, `<img src=x onerror="document.body.remove()"></script>`)
		var found struct{ Images, Width, Window int }
		b.do(t, `return page.evaluate(() => ({images: document.images.length, width: document.documentElement.scrollWidth, window: innerWidth}))`, &found)
		if found.Images > 0 || found.Width > found.Window {
			t.Errorf("%s: %+v", view, found)
		}
	}
}

func noClusters() (dashboard.Clusters, error) { return nil, errors.New("no kubeconfig") }

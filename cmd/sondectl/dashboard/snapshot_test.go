package dashboard

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

func snapshotOf(t *testing.T, api *fakeAPI) string {
	t.Helper()
	s := newSource(callOf(api), noClusters)
	if err := s.once(t.Context()); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := s.snapshot(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestSnapshot(t *testing.T) {
	api := wellAPI()
	api.add("web-2", "web2", tcpProbe, notReady(mesh.ProbeFailedReason+"connection refused"))
	api.proxies[0].Streams[0].Types[0].Nacks = []*adminv1.Nack{{Resource: "b", Reason: "no such filter"}}
	page := snapshotOf(t, api)
	for _, want := range []string{
		"not ok: ", "connection refused", "no such filter", "readyz", "Restarts are guarded on Kubernetes only.", "sondectl why dataplane/web-1", "2/2 acknowledged",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("it lacks %q:\n%s", want, page)
		}
	}
	for _, never := range []string{"<script", "<link", "<img", " src=", " href=", "ZgotmplZ", "url(", "@import"} {
		if strings.Contains(page, never) {
			t.Errorf("it has %q: must need nothing but itself", never)
		}
	}
}

// A list that is not complete says so.
func TestSnapshotOfPartsOfLists(t *testing.T) {
	api := wellAPI()
	api.tail = &adminv1.Tail{LeftOut: 7}
	for range maxEndpoints + 2 {
		api.services[0].Endpoints = append(api.services[0].Endpoints, &adminv1.Endpoint{})
	}
	page := snapshotOf(t, api)
	if n := strings.Count(page, ">7 more are not shown"); n != 3 {
		t.Errorf("%d lists say that 7 are not shown, want 3", n)
	}
	if !strings.Contains(page, ">3 more<") {
		t.Error("it does not say that endpoints are not shown")
	}
}

func TestSnapshotWithoutRights(t *testing.T) {
	api := wellAPI()
	api.errs["restarts"], api.errs["health"] = errForbidden, errForbidden
	if page := snapshotOf(t, api); strings.Count(page, "Not allowed: not allowed") != 2 {
		t.Errorf("it does not say what is not allowed:\n%s", page)
	}
}

// A new snapshot replaces the previous one, which others could read, only once it is complete.
func TestSnapshotReplacesTheFile(t *testing.T) {
	full := errors.New("no space left on device")
	for name, tc := range map[string]struct {
		fails error
		want  string
		mode  fs.FileMode
	}{
		"it is written":    {nil, "new", 0o600},
		"the disk is full": {full, "previous", 0o644},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			path := filepath.Join(folder, "mesh.html")
			if err := os.WriteFile(path, []byte("previous"), 0o644); err != nil {
				t.Fatal(err)
			}
			err := replaceFile(path, func(w io.Writer) error {
				_, err := io.WriteString(w, "new")
				return errors.Join(err, tc.fails)
			})
			if !errors.Is(err, tc.fails) {
				t.Errorf("the error is %v", err)
			}
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if string(content) != tc.want || info.Mode() != tc.mode {
				t.Errorf("it has %q and mode %s, want %q and %s", content, info.Mode(), tc.want, tc.mode)
			}
			if files, err := os.ReadDir(folder); err != nil || len(files) != 1 {
				t.Errorf("the folder has %v, %v", files, err)
			}
		})
	}
}

// TestHostileTexts has names, reasons and probes that would be markup, turn the text round, or be very long.
func TestHostileTexts(t *testing.T) {
	tags := regexp.MustCompile(`<(/?[a-zA-Z!][^\s>]*)`)
	kinds := func(page string) map[string]int {
		all := map[string]int{}
		for _, tag := range tags.FindAllStringSubmatch(page, -1) {
			all[tag[1]]++
		}
		return all
	}
	build := func(text string) *fakeAPI {
		api := wellAPI()
		api.dataplanes, api.proxies, api.services = nil, nil, nil
		api.add(text, text, `,"serviceProbe":{"httpGet":{"port":80,"path":"/`+text+`"},"periodSeconds":1,"timeoutSeconds":1,"failureThreshold":3,"successThreshold":1}`, notReady(mesh.ProbeFailedReason+text))
		api.proxies[0].Streams[0].Types[0].Nacks = []*adminv1.Nack{{Resource: text, Reason: text, At: timestamppb.New(at)}}
		api.health.Checks[0].Status, api.health.Checks[0].Reason = adminv1.HealthCheck_FAILED, text
		api.restarts = &adminv1.ListRestartsResponse{Restarts: []*adminv1.Restart{{Namespace: text, Pod: text, Container: text, Workload: text, Why: text, Failure: text}}}
		return api
	}
	want := kinds(snapshotOf(t, build("plain")))
	for name, text := range map[string]string{
		"a script":         `<script>alert(1)</script>`,
		"an attribute":     `' onmouseover='alert(1)`,
		"the end of style": `</style><svg onload=alert(1)>`,
		"a comment":        `<!--`,
		"right to left":    "\u202egnp.exe",
		"emoji":            "💥🏳️‍🌈",
		"a template":       `{{.Sections}}`,
		"10 kB":            strings.Repeat("<b>", 10<<10/3),
	} {
		t.Run(name, func(t *testing.T) {
			page := snapshotOf(t, build(text))
			got := kinds(page)
			for tag, n := range got {
				if n != want[tag] {
					t.Errorf("<%s> is there %d times, with a plain text %d times", tag, n, want[tag])
				}
			}
			if strings.Contains(page, " onmouseover='") || strings.Contains(page, `{{`) && name != "a template" {
				t.Errorf("a text is an attribute, or the template is not done:\n%s", page)
			}
		})
	}
}

// maxPage limits what the browser loads, compressed.
const maxPage = 60 << 10

func TestPageIsSmall(t *testing.T) {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	err := fs.WalkDir(assets, "assets", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := assets.ReadFile(path)
		if err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if out.Len() > maxPage {
		t.Errorf("the page has %d bytes, must be at most %d", out.Len(), maxPage)
	}
}

// The page asks no other host: each address in it is a path, or the name of a format.
func TestPageNeedsNoOtherHost(t *testing.T) {
	foreign := regexp.MustCompile(`(https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^"'\x60)\s]*`)
	for path, file := range files {
		content, err := assets.ReadFile(file.name)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range foreign.FindAllString(string(content), -1) {
			if !strings.HasPrefix(found, "http://www.w3.org/") {
				t.Errorf("%s has %s", path, found)
			}
		}
	}
}

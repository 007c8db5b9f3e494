package store

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// start makes another process follow the directory of f, with its own records in the state directory.
func (f *fixture) start(state string) (end func()) {
	f.t.Helper()
	next := newFixture(f.t)
	next.path, next.dir.o.Path = f.path, f.path
	opened, err := OpenState(state)
	if err != nil {
		f.t.Fatal(err)
	}
	records := newRecordsOf(f.t, opened, &next.log)
	next.dir.directory = newDirectory(f.path, settle)
	next.dir.directory.lastGood = &lastGood{records, next.dir.o.Logger}
	*f = *next
	return func() {
		synctest.Wait()
		if err := records.Close(); err != nil {
			f.t.Error(err)
		}
		if err := opened.Close(); err != nil {
			f.t.Error(err)
		}
	}
}

// A file that is invalid when the control plane starts has the content that was last in use.
func TestLastGoodContentSurvivesARestart(t *testing.T) {
	const web = "set Service default web"
	damages := map[string]struct {
		harm    func(t *testing.T, file string)
		problem string
	}{
		"a field is wrong":    {put("type: Service\nname: web\nprotocol: 7\n"), "protocol"},
		"it is cut":           {put("type: Serv"), "type"},
		"it is empty":         {put(""), "is empty"},
		"it cannot be parsed": {put("\x00\xff"), "web.yaml"},
		"it is a broken link": {func(t *testing.T, file string) {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("nowhere", file); err != nil {
				t.Fatal(err)
			}
		}, "a link to nowhere"},
	}
	for name, tc := range damages {
		virtual.Run(t, name, func(t *testing.T) {
			f, state := newFixture(t), filepath.Join(t.TempDir(), "state")
			end := f.start(state)
			f.write("web.yaml", service("web"))
			f.expect("at first", f.settled(), web, "synced")
			end()

			tc.harm(t, filepath.Join(f.path, "web.yaml"))
			for range 2 { // the content is not removed once it was used
				end = f.start(state)
				f.expect("after the restart", f.settled(), web, "synced")
				if got := f.dir.Problems(); len(got) != 2 || !strings.Contains(got[0].Error()+got[1].Error(), tc.problem) || !strings.Contains(got[0].Error()+got[1].Error(), "its last good content is used") {
					t.Errorf("problems = %v", got)
				}
				end()
			}
			end = f.start(state)
			f.settled()
			if err := os.Remove(filepath.Join(f.path, "web.yaml")); err != nil {
				t.Fatal(err)
			}
			f.write("web.yaml", service("web2"))
			f.expect("mended", f.look(time.Second), nil...)
			f.expect("mended", f.look(settle), "set Service default web2", "delete Service default web")
			f.expectProblems("mended")
			end()
		})
	}
}

func put(text string) func(*testing.T, string) {
	return func(t *testing.T, file string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// The content of a removed file does not come back with an invalid file of that name, whether the file was removed
// while the control plane ran or not.
func TestLastGoodContentIsForgotten(t *testing.T) {
	for name, while := range map[string]bool{"while it runs": true, "while it does not": false} {
		virtual.Run(t, name, func(t *testing.T) {
			f, state := newFixture(t), filepath.Join(t.TempDir(), "state")
			end := f.start(state)
			f.write("web.yaml", service("web"))
			f.settled()
			if while {
				f.remove("web.yaml")
				f.settled()
				end()
			} else {
				end()
				f.remove("web.yaml")
				end = f.start(state)
				f.expect("without it", f.settled(), "synced")
				end()
			}
			f.write("web.yaml", "{")
			end = f.start(state)
			f.expect("bad from the start", f.settled(), "synced")
			end()
		})
	}
}

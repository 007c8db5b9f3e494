package dashboard

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/replacefile"
)

//go:embed snapshot.html
var snapshotHTML string

// view is what the template of a snapshot gets.
type view struct {
	At           time.Time
	Style        template.CSS
	StyleHash    string
	Sections     map[string]Section
	Problems     Problems
	Workloads    Workloads
	Services     Services
	Proxies      Proxies
	Restarts     Restarts
	ControlPlane Plane
	Watchdog     Watchdog
}

// snapshot writes the sections as a page without scripts, which needs no other file. Each text is data of the template,
// so that none becomes markup.
func (s *source) snapshot(w io.Writer) error {
	style, err := assets.ReadFile("assets/app.css")
	if err != nil {
		panic(err) // it is embedded
	}
	sum := sha256.Sum256(style)
	v := view{At: time.Now().UTC(), Style: template.CSS(style), StyleHash: base64.StdEncoding.EncodeToString(sum[:])} //nolint:gosec // the style is ours
	v.Sections, _ = s.look()
	for name, into := range map[string]any{
		"problems": &v.Problems, "workloads": &v.Workloads, "services": &v.Services, "proxies": &v.Proxies,
		"restarts": &v.Restarts, "controlplane": &v.ControlPlane, sectionWatchdog: &v.Watchdog,
	} {
		_, data, _ := s.section(name)
		if data == nil {
			continue // the section says why
		}
		if err := json.Unmarshal(data, into); err != nil {
			return fmt.Errorf("decode %s: %w", name, err)
		}
	}
	page, err := template.New("snapshot").Funcs(template.FuncMap{
		"ago": func(t *time.Time) string {
			if t == nil {
				return ""
			}
			return printer.ShortDuration(max(0, v.At.Sub(*t)))
		},
		"until": func(t *time.Time) string {
			switch {
			case t == nil:
				return ""
			case !t.After(v.At):
				return "expired"
			}
			return printer.ShortDuration(t.Sub(v.At))
		},
		"probe": func(state State) mark { return mark{string(levelsOfStates[state]), string(state)} },
		"nodes": func(verdict, cause string) string {
			text := cmp.Or(verdict, "not judged")
			if cause != "" {
				text += " (" + cause + ")"
			}
			return text
		},
		"level": func(level Level, text string) mark { return mark{string(level), text} },
	}).Parse(snapshotHTML)
	if err != nil {
		panic(err) // it is embedded
	}
	if err := page.Execute(w, v); err != nil {
		return fmt.Errorf("fill in the page: %w", err)
	}
	return nil
}

// mark is a state with its shape.
type mark struct{ Shape, Text string }

// levelsOfStates are how bad the states of probes are. Held and Restarting have the shape of a warning: Sonde acts on
// them.
var levelsOfStates = map[State]Level{
	Failing: Bad, Held: Bad, Restarting: Warn, Errored: Warn, Warned: Warn, Unreported: Unknown, Unchecked: Unknown,
	Passing: Good, NoProbe: "none",
}

// replaceFile writes a file that only its owner may read. On errors the previous one stays as it is. Other files,
// such as /dev/stdout, are written in place.
func replaceFile(path string, write func(io.Writer) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write the snapshot: %w", err)
		}
	}()
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(write(file), file.Close())
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	return replacefile.Write(path, 0o600, write)
}

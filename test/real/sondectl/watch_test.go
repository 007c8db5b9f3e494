package sondectl_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestStatusWatch follows a real control plane that gets a broken file, is killed, and comes back.
func TestStatusWatch(t *testing.T) {
	m := harness.New(t, harness.Options{Programs: built(t)})
	log := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(log)
	must.Do(t, err)
	cmd := sondectl(t, append([]string{"status", "--watch", "--short"}, m.CtlFlags()...)...)
	cmd.Stdout, cmd.Stderr = file, file
	must.Do(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait() // a signal ends it, whatever it was doing
		_ = file.Close()
	}()
	seen := 0
	says := func(text string) {
		t.Helper()
		must.Poll(t, "sondectl status --watch to write "+text, func(context.Context) error {
			data, err := os.ReadFile(log)
			if err != nil {
				return err
			}
			at := strings.Index(string(data[seen:]), text)
			if at < 0 {
				return errors.New(string(data))
			}
			seen += at + len(text)
			return nil
		})
	}
	says("ok: 1 mesh")
	must.Do(t, m.Put("broken.yaml", "type: Dataplane\nname: [\n"))
	says("not ok: 1 error")
	m.ControlPlane.Kill()
	says("blind since ")
	must.Do(t, m.Remove("broken.yaml"))
	must.Do(t, m.StartControlPlane(t.Context()))
	says("the control plane answers again")
	says("ok: 1 mesh")
}

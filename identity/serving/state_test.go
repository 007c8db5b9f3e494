package serving

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/logtest"
	"github.com/sonde-mesh/sonde/internal/testing/secrettest"
)

// bent returns the JSON in data after bend has changed it.
func bent(t *testing.T, data []byte, bend func(map[string]any)) []byte {
	t.Helper()
	var f map[string]any
	if err := json.Unmarshal(data, &f); err != nil {
		t.Fatal(err)
	}
	bend(f)
	data, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestBrokenStateIsNamed(t *testing.T) {
	field := func(name string, value any) func(map[string]any) {
		return func(f map[string]any) { f[name] = value }
	}
	first := func(f map[string]any) map[string]any { return f["cas"].([]any)[0].(map[string]any) }
	tests := map[string]struct {
		bend func(map[string]any)
		want string
	}{
		"epoch 0":             {field("epoch", 0), "epoch: 0: must be from 1 to 9007199254740992"},
		"epoch -1":            {field("epoch", -1), "epoch: -1: must be from 1"},
		"epoch too large":     {field("epoch", 1<<60), "epoch: 1152921504606846976: must be"},
		"epoch no number":     {field("epoch", "now"), "epoch: invalid string"},
		"no CAs":              {field("cas", nil), `signing: "`},
		"signed by no CA":     {field("signing", "x"), `signing: "x": must be the ID of one of cas`},
		"CA no PEM":           {func(f map[string]any) { first(f)["certificate"] = "x" }, "cas[0]: read certificate: must be a PEM block"},
		"key missing":         {func(f map[string]any) { delete(first(f), "key") }, "cas[0].key: the key of the CA that signs is missing"},
		"key no PEM":          {func(f map[string]any) { first(f)["key"] = "secret" }, "cas[0]: read key"},
		"unknown step":        {field("rotation", map[string]any{"step": "x"}), `rotation.step: "x": must be "trust both"`},
		"missed without mesh": {field("missed", []string{"web-1"}), `missed: "web-1": must be`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			storage := &secrettest.Memory{}
			c := open(t, Options{Storage: storage})
			storage.Put(stateName, bent(t, storage.Get(stateName), tc.bend))
			_, err := Open(t.Context(), Options{Storage: storage})
			if err == nil || !strings.Contains(err.Error(), "read serving-ca.json: ") || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("Open() = %v, want %q", err, tc.want)
			}
			// A running process keeps its state.
			if err := c.follow(t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) || !verifies(t, c, c.CA()) {
				t.Errorf("follow() = %v, want %q", err, tc.want)
			}
		})
	}
	storage := &secrettest.Memory{}
	open(t, Options{Storage: storage})
	storage.Put(stateName, []byte("secret"))
	if _, err := Open(t.Context(), Options{Storage: storage}); err == nil || !strings.Contains(err.Error(), "are not JSON") || strings.Contains(err.Error(), "secret") {
		t.Errorf("Open() of garbage = %v", err)
	}
}

func TestOlderStateIsNotUsed(t *testing.T) {
	storage, log := &secrettest.Memory{}, &logtest.Buffer{}
	c := open(t, Options{Storage: storage, Logger: slog.New(slog.NewTextHandler(log, nil))})
	backup := storage.Get(stateName)
	start(t, c)
	now := c.Trusted()
	storage.Put(stateName, backup)
	if err := c.follow(t.Context()); err == nil || !strings.Contains(err.Error(), "epoch: ") || !strings.Contains(err.Error(), "must be at least") {
		t.Errorf("follow() = %v, want an error that names the epoch", err)
	}
	if _, err := c.AdvanceRotation(t.Context(), c.Rotation(), nil); err == nil || !strings.Contains(err.Error(), "must be at least") {
		t.Errorf("AdvanceRotation() = %v, want an error that names the epoch", err)
	}
	if c.Trusted().Epoch != now.Epoch {
		t.Error("the backup is used")
	}
	storage.Put(stateName, nil)
	if err := c.follow(t.Context()); err == nil || !strings.Contains(err.Error(), "it was removed from the storage, but remains in use") {
		t.Errorf("follow() = %v", err)
	}
}

func FuzzDecodeState(f *testing.F) {
	storage := &secrettest.Memory{}
	c, err := Open(f.Context(), Options{Storage: storage, Now: func() time.Time { return time.Unix(1_900_000_000, 0) }})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(storage.Get(stateName))
	if err := c.StartRotation(f.Context()); err != nil {
		f.Fatal(err)
	}
	f.Add(storage.Get(stateName))
	f.Add([]byte(`{"signing":"","epoch":1,"cas":[{}],"rotation":{},"missed":["/"]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := decodeState(data)
		if err != nil {
			return
		}
		if s.Rotation != nil {
			s.Next(time.Now())
		}
		again, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := decodeState(again); err != nil || back.ID() != s.ID() || back.Epoch != s.Epoch {
			t.Fatalf("what was read cannot be read again: %v", err)
		}
	})
}

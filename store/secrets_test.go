package store

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/sonde-mesh/sonde/identity/secret"
)

func openSecrets(t *testing.T) Secrets {
	t.Helper()
	state, err := OpenState(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = state.Close() })
	return state.Secrets()
}

func TestSecrets(t *testing.T) {
	s := openSecrets(t)
	ctx := t.Context()
	const name = "meshes/default/ca.json"
	if _, _, err := s.Read(ctx, name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Read() of nothing = %v, want fs.ErrNotExist", err)
	}
	if _, err := s.Update(ctx, name, nil, ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Update() of nothing = %v, want fs.ErrNotExist", err)
	}
	first, err := s.Create(ctx, name, []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(ctx, name, []byte("2")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Create() again = %v, want fs.ErrExist", err)
	}
	second, err := s.Update(ctx, name, []byte("2"), first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Update(ctx, name, []byte("3"), first); !errors.Is(err, secret.ErrConflict) {
		t.Errorf("Update() of an old version = %v, want secret.ErrConflict", err)
	}
	if data, version, err := s.Read(ctx, name); string(data) != "2" || version != second || err != nil {
		t.Errorf("Read() = %q, %q, %v, want 2 of version %q", data, version, err, second)
	}
	if names, err := s.List(ctx, "meshes"); !slices.Equal(names, []string{"default"}) || err != nil {
		t.Errorf("List() = %v, %v", names, err)
	}
	if _, err := s.Create(ctx, "../x", nil); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("Create() outside = %v, want fs.ErrInvalid", err)
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.Watch(done, nil); err != nil {
		t.Errorf("Watch() = %v", err)
	}
}

func TestOneOfManyCreates(t *testing.T) {
	s := openSecrets(t)
	var all sync.WaitGroup
	kept := make(chan string, 8)
	for i := range cap(kept) {
		all.Go(func() {
			data, err := secret.ReadOrCreate(t.Context(), s, "key", func() ([]byte, error) { return []byte{'a' + byte(i)}, nil })
			if err != nil {
				t.Error(err)
			}
			kept <- string(data)
		})
	}
	all.Wait()
	close(kept)
	first := <-kept
	for data := range kept {
		if data != first {
			t.Errorf("one has %q, another one %q", first, data)
		}
	}
}

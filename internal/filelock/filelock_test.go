package filelock_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/sonde-mesh/sonde/internal/filelock"
)

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	first, second := open(), open()
	defer func() { _ = second.Close() }()
	if err := filelock.Lock(first); err != nil {
		t.Fatal(err)
	}
	if err := filelock.Lock(second); !errors.Is(err, filelock.ErrHeld) {
		t.Errorf("Lock() of a file that is locked: error = %v, want ErrHeld", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := filelock.Lock(second); err != nil {
		t.Errorf("Lock() after the holder has closed it: %v", err)
	}
	if err := filelock.Lock(first); err == nil || errors.Is(err, filelock.ErrHeld) {
		t.Errorf("Lock() of a closed file: error = %v, want another than ErrHeld", err)
	}
}

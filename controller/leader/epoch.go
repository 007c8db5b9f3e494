package leader

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/sonde-mesh/sonde/identity/secret"
)

// SecretName is the name of the control plane's secret with the epoch.
const SecretName = "leader"

const (
	// maxEpoch is the last one that JSON has exactly in every language.
	maxEpoch = 1 << 53
	// maxConflicts is how often an epoch is taken anew, since another replica was faster.
	maxConflicts = 5
)

// Secrets keeps the epoch, which all replicas share. *secrets.Store implements it.
type Secrets interface {
	secret.Store
	// Update replaces a secret of which the caller has read this version, and returns the new one. The error wraps secret.ErrConflict if
	// it has another one by now, and fs.ErrNotExist if there is none.
	Update(ctx context.Context, name string, data []byte, version string) (string, error)
}

// epochs is the secret with the epoch.
type epochs struct {
	Secrets
	name string
}

// record is what the secret has.
type record struct {
	// Epoch of the last leader.
	Epoch int64 `json:"epoch"`
	// Replica that has taken it, for readers.
	Replica string `json:"replica"`
}

// takeEpoch returns an epoch that no other term has, greater than those before and than least, and keeps it. It is at least the Unix time, so
// that it does not start anew if the secret is deleted.
func takeEpoch(ctx context.Context, s epochs, replica string, least int64) (int64, error) {
	for range maxConflicts {
		before, version, err := readEpoch(ctx, s)
		if err != nil {
			return 0, fmt.Errorf("take epoch: %w", err)
		}
		least = max(least, before)
		r := record{Epoch: max(least+1, time.Now().Unix()), Replica: replica}
		err = r.keep(ctx, s, version)
		if err == nil {
			return r.Epoch, nil
		}
		if !errors.Is(err, secret.ErrConflict) && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
			return 0, fmt.Errorf("take epoch: %w", err)
		}
	}
	return 0, fmt.Errorf("take epoch: %d other writers were faster: %w", maxConflicts, secret.ErrConflict)
}

// readEpoch returns the epoch that was taken last and the version of the secret, 0 and "" if there is none.
func readEpoch(ctx context.Context, s epochs) (epoch int64, version string, err error) {
	data, version, err := s.Read(ctx, s.name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, "", nil
	}
	if err != nil {
		return 0, "", err
	}
	epoch, err = epochOf(data)
	if err != nil {
		return 0, "", fmt.Errorf("read secret %q: %w", s.name, err)
	}
	return epoch, version, nil
}

// keep replaces this version of the secret, "" for none.
func (r record) keep(ctx context.Context, s epochs, version string) error {
	if err := r.check(); err != nil {
		return err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if version == "" {
		_, err = s.Create(ctx, s.name, data)
	} else {
		_, err = s.Update(ctx, s.name, data, version)
	}
	return err
}

// epochOf returns the epoch of a secret.
func epochOf(data []byte) (int64, error) {
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return 0, fmt.Errorf("epoch: %w", err)
	}
	return r.Epoch, r.check()
}

func (r record) check() error {
	if r.Epoch < 1 || r.Epoch > maxEpoch {
		return fmt.Errorf("epoch: %d: must be from 1 to %d", r.Epoch, int64(maxEpoch))
	}
	return nil
}

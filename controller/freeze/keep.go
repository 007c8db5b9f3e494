package freeze

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/sonde-mesh/sonde/identity/secret"
)

// secretName is the name of the secret with the verdict.
const secretName = "freeze"

const (
	// keepTimeout bounds a read or write of the secret, keepAgain is the pause after a failed write.
	keepTimeout = 5 * time.Second
	keepAgain   = 30 * time.Second
)

// Secrets keeps the verdict, which all replicas share. *secrets.Store implements it.
type Secrets interface {
	secret.Store
	// Update replaces a secret if it still has this version, and returns the new version. The error wraps
	// secret.ErrConflict if it has another version, and fs.ErrNotExist if it does not exist.
	Update(ctx context.Context, name string, data []byte, version string) (string, error)
}

// Load reads the verdict from the secret. If that fails, another replica may send its verdict.
func (f *Freeze) Load(ctx context.Context) {
	if f.o.Secrets == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	v, _, err := f.readSecret(ctx)
	if v == nil {
		f.o.Logger.WarnContext(ctx,
			"failed to read the stored freeze verdict, waiting for another replica's or for a new one", "err", err)
		return
	}
	f.take(v)
}

// readSecret returns the zero Verdict without a version if there is no secret. For invalid content it returns an error
// with the version.
func (f *Freeze) readSecret(ctx context.Context) (*Verdict, string, error) {
	data, version, err := f.o.Secrets.Read(ctx, secretName)
	if errors.Is(err, fs.ErrNotExist) {
		return &Verdict{}, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("read secret %q: %w", secretName, err)
	}
	v := &Verdict{}
	if err := json.Unmarshal(data, v); err != nil {
		return nil, version, fmt.Errorf("read secret %q: %w", secretName, err)
	}
	if err := v.Validate(); err != nil {
		return nil, version, fmt.Errorf("read secret %q: %w", secretName, err)
	}
	return v, version, nil
}

// save writes a changed verdict to the secret, unless a later leader has written its own. It retries a failed write
// later.
func (l *leading) save(ctx context.Context, now time.Time) {
	v := l.Verdict()
	if l.o.Secrets == nil || v.Epoch != l.epoch || l.saved != nil && v.sameAs(l.saved) || now.Before(l.saveAgain) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	if err := l.write(ctx, v); err != nil {
		l.saveAgain = now.Add(keepAgain)
		if !errors.Is(err, secret.ErrConflict) && !errors.Is(err, fs.ErrExist) { // another replica was faster
			l.o.Logger.WarnContext(ctx, "failed to store the freeze verdict, a replica that starts alone would miss it",
				"err", err)
		}
		return
	}
	l.saved = v
}

func (l *leading) write(ctx context.Context, v *Verdict) error {
	old, version, err := l.readSecret(ctx)
	switch {
	case err != nil && version == "":
		return err
	case old != nil && old.Epoch > v.Epoch:
		return nil
	}
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if version == "" {
		_, err = l.o.Secrets.Create(ctx, secretName, data)
	} else {
		_, err = l.o.Secrets.Update(ctx, secretName, data, version)
	}
	return err //nolint:wrapcheck // the caller looks for conflicts
}

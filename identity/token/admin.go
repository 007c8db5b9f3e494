package token

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/sonde-mesh/sonde/identity/secret"
)

// adminFile holds the token of the admin API, on one line.
const adminFile = "admin-token"

// minAdmin is the shortest token that is accepted, since users may write the file themselves.
const minAdmin = 16

// OpenAdmin returns the token that callers of the admin API must send. It makes one if the storage has none.
func OpenAdmin(ctx context.Context, storage secret.Store) (string, error) {
	data, err := secret.ReadOrCreate(ctx, storage, adminFile, func() ([]byte, error) {
		return []byte(rand.Text() + "\n"), nil // at least 128 bits of randomness
	})
	if err != nil {
		return "", fmt.Errorf("open %s: %w", adminFile, err)
	}
	token := strings.TrimSpace(string(data))
	if len(token) < minAdmin {
		return "", errors.New("open " + adminFile + ": the token is too short; remove the file to get a new one")
	}
	return token, nil
}

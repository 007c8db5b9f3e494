package token

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/sonde-mesh/sonde/identity/secret"
)

// adminFile has the token of the admin API on one line.
const adminFile = "admin-token"

// Limits of a token's length: users may write the file themselves, and send the token in a header.
const minAdmin, maxAdmin = 16, 4096

// OpenAdmin returns the token for callers of the admin API. It creates the token if the storage has none.
func OpenAdmin(ctx context.Context, storage secret.Store) (string, error) {
	data, err := secret.ReadOrCreate(ctx, storage, adminFile, func() ([]byte, error) {
		return []byte(rand.Text() + "\n"), nil // at least 128 bits of randomness
	})
	if err != nil {
		return "", fmt.Errorf("open %s: %w", adminFile, err)
	}
	token := strings.TrimSpace(string(data))
	if n := len(token); n < minAdmin || n > maxAdmin {
		return "", fmt.Errorf("open %s: the token has %d bytes: must have from %d to %d; remove the file to get a new one",
			adminFile, n, minAdmin, maxAdmin)
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errors.New("open " + adminFile + ": must be one word of printable ASCII; remove the file to get a new one")
	}
	return token, nil
}

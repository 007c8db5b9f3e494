package token

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// adminFile holds the token of the admin API, on one line.
const adminFile = "admin-token"

// minAdmin is the shortest token that is accepted, since users may write the file themselves.
const minAdmin = 16

// OpenAdmin returns the token that callers of the admin API must send. It makes one if the storage has none.
func OpenAdmin(storage Storage) (string, error) {
	data, err := storage.Read(adminFile)
	if errors.Is(err, fs.ErrNotExist) {
		// At least 128 bits of randomness, as text.
		data = []byte(rand.Text() + "\n")
		err = storage.Write(adminFile, data)
	}
	if err != nil {
		return "", fmt.Errorf("open %s: %w", adminFile, err)
	}
	token := strings.TrimSpace(string(data))
	if len(token) < minAdmin {
		return "", errors.New("open " + adminFile + ": the token is too short; remove the file to get a new one")
	}
	return token, nil
}

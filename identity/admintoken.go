package identity

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
)

// adminTokenFile holds the token of the admin API, on one line.
const adminTokenFile = "admin-token"

// minAdminToken is the shortest token that is accepted, since users may write the file themselves.
const minAdminToken = 16

func openAdminToken(storage Storage) (string, error) {
	data, err := storage.Read(adminTokenFile)
	if missing(err) {
		// At least 128 bits of randomness, as text.
		data = []byte(rand.Text() + "\n")
		err = storage.Write(adminTokenFile, data)
	}
	if err != nil {
		return "", fmt.Errorf("open %s: %w", adminTokenFile, err)
	}
	token := strings.TrimSpace(string(data))
	if len(token) < minAdminToken {
		return "", errors.New("open " + adminTokenFile + ": the token is too short; remove the file to get a new one")
	}
	return token, nil
}

// AdminToken returns the token that callers of the admin API must send.
func (a *Authority) AdminToken() string { return a.adminToken }

package identity

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
)

// adminTokenFile is the token of the admin API in the state folder, in one line.
const adminTokenFile = "admin-token"

// minAdminToken is the least length of a token that somebody put there by hand.
const minAdminToken = 16

func openAdminToken(storage Storage) (string, error) {
	data, err := storage.Read(adminTokenFile)
	if missing(err) {
		// 128 bits and more of randomness, as text.
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

// AdminToken is what callers of the admin API must show.
func (a *Authority) AdminToken() string { return a.adminToken }

package identity

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// fileKept stores the CAs that the control plane has sent.
const fileKept = "serving-ca.json"

// maxReplaced limits the CAs remembered as replaced.
const maxReplaced = 256

// keptCAs is the content of fileKept.
type keptCAs struct {
	// ControlPlane is the address of the control plane that sent the CAs.
	ControlPlane string `json:"controlPlane"`
	ID           string `json:"id"`
	Epoch        int64  `json:"epoch"`
	// Trusted has certificates in PEM.
	Trusted string `json:"trusted"`
	// Replaced are SHA-256 fingerprints of certificates, in hexadecimal.
	Replaced []string `json:"replaced,omitempty"`
}

func (t toldCAs) keep(files Files, controlPlane string) error {
	data, err := json.Marshal(keptCAs{ControlPlane: controlPlane, ID: t.id, Epoch: t.epoch, Trusted: pemOf(t.roots),
		Replaced: t.replaced})
	if err != nil {
		return fmt.Errorf("encode CAs of the control plane: %w", err)
	}
	return files.Write(fileKept, data)
}

// readKept returns the stored CAs of the control plane at an address; the result is empty if another control plane sent
// them. The error wraps fs.ErrNotExist if no CAs are stored.
func readKept(files Files, controlPlane string) (toldCAs, error) {
	data, err := files.Read(fileKept)
	if err != nil {
		return toldCAs{}, err
	}
	t, by, err := decodeKept(data)
	if err != nil {
		return toldCAs{}, fmt.Errorf("read %s: %w", fileKept, err)
	}
	if by != controlPlane {
		return toldCAs{}, nil
	}
	return t, nil
}

// decodeKept is the reverse of keep. Its errors name the field.
func decodeKept(data []byte) (t toldCAs, controlPlane string, err error) {
	var kept keptCAs
	if json.Unmarshal(data, &kept) != nil {
		return toldCAs{}, "", errors.New("not written by this agent")
	}
	if kept.Epoch <= 0 || kept.Epoch > maxEpoch {
		return toldCAs{}, "", fmt.Errorf("epoch: %d: must be from 1 to %d", kept.Epoch, int64(maxEpoch))
	}
	if len(kept.Replaced) > maxReplaced {
		return toldCAs{}, "", fmt.Errorf("replaced: has %d items: must have at most %d", len(kept.Replaced), maxReplaced)
	}
	for i, f := range kept.Replaced {
		if sum, err := hex.DecodeString(f); err != nil || len(sum) != 32 {
			return toldCAs{}, "", fmt.Errorf("replaced[%d]: %.80q: must be the SHA-256 of a certificate, hexadecimal", i, f)
		}
	}
	b := &agentv1.Bundle{Id: kept.ID, Epoch: kept.Epoch}
	for _, c := range parsePEM([]byte(kept.Trusted)) {
		b.Roots = append(b.Roots, c.Raw)
	}
	t.replaced = kept.Replaced
	if t.bundle, err = parseBundle(b); err != nil {
		return toldCAs{}, "", fmt.Errorf("trusted: %w", err)
	}
	return t, kept.ControlPlane, nil
}

package identity

import "time"

// Step of a rotation.
type Step string

// rotation is what the storage knows of one that is running.
type rotation struct {
	Step    Step      `json:"step"`
	Started time.Time `json:"started"`
	Forced  bool      `json:"forced,omitempty"`
}

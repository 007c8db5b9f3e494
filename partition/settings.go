package partition

import (
	"errors"
	"fmt"
	"time"
)

// Defaults of Settings.
const (
	DefaultEnter = 0.60
	DefaultCalm  = 3
)

// fewest is the minimum size of a group that can be lost: a single silent member is no sign of a broken path.
const fewest = 2

// Settings of Judge.
type Settings struct {
	// Silence is how long a member must give no sign of life to count as silent. Required, more than 0.
	Silence time.Duration
	// Enter is the fraction of silent members at which a group is lost: more than 0, at most 1.
	Enter float64
	// Leave is the fraction of silent members below which a group is no longer lost, after Calm consecutive readings:
	// more than 0, at most Enter.
	Leave float64
	// Calm is the number of these consecutive readings, at least 1.
	Calm int
	// Quiet is the minimum duration of these readings. Default 0. If it is shorter than Silence, a group whose members
	// renew once per Silence is lost and seen in turn.
	Quiet time.Duration
}

// LeaveFor returns the default of Settings.Leave: two thirds of the fraction at which a group is lost.
func LeaveFor(enter float64) float64 { return enter * 2 / 3 }

// Validate returns all violations, joined.
func (s Settings) Validate() error {
	var errs []error
	if s.Silence <= 0 {
		errs = append(errs, fmt.Errorf("silence: %s: must be more than 0", s.Silence))
	}
	if !(s.Enter > 0 && s.Enter <= 1) { // false for NaN as well
		errs = append(errs, fmt.Errorf("enter: %v: must be more than 0 and at most 1", s.Enter))
	}
	if !(s.Leave > 0 && s.Leave <= s.Enter) {
		errs = append(errs, fmt.Errorf("leave: %v: must be more than 0 and at most enter, which is %v", s.Leave, s.Enter))
	}
	if s.Calm < 1 {
		errs = append(errs, fmt.Errorf("calm: %d: must be at least 1", s.Calm))
	}
	if s.Quiet < 0 {
		errs = append(errs, fmt.Errorf("quiet: %s: must be at least 0s", s.Quiet))
	}
	return errors.Join(errs...)
}

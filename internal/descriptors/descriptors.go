// Package descriptors shares the file descriptors of a process among its uses. Without shares, the clients of one port would take those of all
// other ports, of files, and of the connections that the process opens itself.
package descriptors

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"syscall"
)

// Use is one thing for which a process opens descriptors, such as the connections of a port.
type Use struct {
	Name string
	// Least is how many it needs. Of what is left, each use gets a part that is proportional to its Least.
	Least int
	// Most is how many it has a use for. Default: no limit.
	Most int
}

// Shares says how many descriptors each use may open, by its name.
type Shares map[string]int

// Limit returns how many descriptors this process may open: RLIMIT_NOFILE. Go has raised the soft limit to the hard one before main, and
// starts other programs with the one that it has found (package os).
func Limit() (int, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	return int(min(limit.Cur, math.MaxInt32)), nil
}

// Share shares limit descriptors. The error says how many are needed, if there are fewer.
func Share(limit int, uses ...Use) (Shares, error) {
	least := 0
	for _, u := range uses {
		least += u.Least
	}
	if limit < least {
		return nil, fmt.Errorf("open files (RLIMIT_NOFILE, ulimit -Hn): %d: must be at least %d: %s", limit, least, needs(uses))
	}
	shares, open := Shares{}, slices.Clone(uses)
	for full := true; full; { // those that have enough leave more to the others
		full = false
		open = slices.DeleteFunc(open, func(u Use) bool {
			if u.Most == 0 || u.Most > part(u.Least, limit, least) {
				return false
			}
			full, shares[u.Name] = true, u.Most
			limit, least = limit-u.Most, least-u.Least
			return true
		})
	}
	for _, u := range open {
		shares[u.Name] = part(u.Least, limit, least)
	}
	return shares, nil
}

// part returns n of all that are to have limit together.
func part(n, limit, all int) int { return int(int64(n) * int64(limit) / int64(all)) }

func needs(uses []Use) string {
	all := make([]string, len(uses))
	for i, u := range uses {
		all[i] = fmt.Sprintf("%d for %s", u.Least, u.Name)
	}
	return strings.Join(all, ", ")
}

// Warn logs the shares if uses have fewer than they have a use for.
func (s Shares) Warn(log *slog.Logger, limit int, uses ...Use) {
	var accepted []any
	low := false
	factor := 1 // how many times its Least each use gets where all have enough
	for _, u := range uses {
		factor = max(factor, (u.Most+u.Least-1)/u.Least)
		low = low || s[u.Name] < u.Most
		if s[u.Name] < u.Most || u.Most == 0 {
			accepted = append(accepted, u.Name, s[u.Name])
		}
	}
	if !low {
		return
	}
	enough := 0
	for _, u := range uses {
		if u.Most == 0 {
			u.Most = u.Least * factor
		}
		enough += u.Most
	}
	log.Warn("limit of open files is low, ports accept fewer connections", "limit", limit, "recommended", enough, slog.Group("shares", accepted...))
}

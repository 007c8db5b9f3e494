// Package descriptors shares the file descriptors of a process among its uses. Without shares, the clients of one port
// could take the descriptors of all other ports, of files, and of outgoing connections.
package descriptors

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"syscall"
)

// Use is one use of descriptors, such as the connections of a port.
type Use struct {
	Name string
	// Least is how many descriptors the use needs. The rest is shared in proportion to Least.
	Least int
	// Most is how many descriptors the use can use. Default: no limit.
	Most int
}

// Shares maps the name of each use to its number of descriptors.
type Shares map[string]int

// Limit returns how many descriptors this process may open: RLIMIT_NOFILE. Go raises the soft limit to the hard limit
// before main, and starts other programs with the original one (package os).
func Limit() (int, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	return int(min(limit.Cur, math.MaxInt32)), nil
}

// Share divides limit descriptors among the uses. If there are too few, the error names the required number.
func Share(limit int, uses ...Use) (Shares, error) {
	least := 0
	for _, u := range uses {
		least += u.Least
	}
	if limit < least {
		return nil, fmt.Errorf("open files (RLIMIT_NOFILE, ulimit -Hn): %d: must be at least %d: %s",
			limit, least, needs(uses))
	}
	shares, open := Shares{}, slices.Clone(uses)
	for full := true; full; { // uses at their Most leave more to the others
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

// part returns n's share of limit, out of all.
func part(n, limit, all int) int { return int(int64(n) * int64(limit) / int64(all)) }

func needs(uses []Use) string {
	all := make([]string, len(uses))
	for i, u := range uses {
		all[i] = fmt.Sprintf("%d for %s", u.Least, u.Name)
	}
	return strings.Join(all, ", ")
}

// Warn logs the shares if uses get fewer descriptors than they could use.
func (s Shares) Warn(log *slog.Logger, limit int, uses ...Use) {
	var accepted []any
	low := false
	factor := 1 // the multiple of its Least that each use gets with enough descriptors
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
	log.Warn("limit of open files is low, ports accept fewer connections",
		"limit", limit, "recommended", enough, slog.Group("shares", accepted...))
}

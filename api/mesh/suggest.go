package mesh

import (
	"fmt"
	"slices"
	"strings"
)

// UnknownField says what to write instead of an unknown field: the one that differs only in letter case or separators,
// such as service_port for servicePort, else the nearest, else all of them.
func UnknownField(name string, known []string) string {
	const is = "is an unknown field"
	switch near, same := Nearest(name, known); {
	case same:
		return is + ": write " + near
	case near != "":
		return is + ": did you mean " + near + "?"
	case len(known) > 0:
		return is + ": known here are " + strings.Join(known, ", ")
	}
	return is
}

// Nearest returns the known name that is probably intended, "" if none is near, and whether it differs only in letter
// case or separators.
func Nearest(name string, known []string) (near string, same bool) {
	folded := fold(name)
	least := max(1, len(folded)/3) + 1
	for _, k := range known {
		to := fold(k)
		if to == folded {
			return k, true
		}
		if d := distance(folded, to, least); d < least {
			near, least = k, d
		}
	}
	return near, false
}

// DidYouMean returns the end of a not-found message, with the known name that is probably intended, "" if none is near.
func DidYouMean(name string, known []string) string {
	if near, _ := Nearest(name, slices.Sorted(slices.Values(known))); near != "" {
		return fmt.Sprintf(": did you mean %q?", near)
	}
	return ""
}

// meant returns what is allowed, with the intended value if it differs only in letter case or separators.
func meant[S ~string](allowed string, value S, among ...S) string {
	known := make([]string, 0, len(among))
	for _, k := range among {
		known = append(known, string(k))
	}
	if near, same := Nearest(string(value), known); same {
		return allowed + ": write " + near
	}
	return allowed
}

var separators = strings.NewReplacer("_", "", "-", "", " ", "")

func fold(name string) string { return separators.Replace(strings.ToLower(name)) }

// distance returns how many letters must be added, removed, replaced or swapped with the next to make b of a, or limit
// if that is less.
func distance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	// The last three rows of the table of distances between the beginnings of a and b.
	var before []int
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return min(last[len(b)], limit)
}

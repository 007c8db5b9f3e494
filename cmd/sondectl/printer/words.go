package printer

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Plural returns "1 error" or "2 errors".
func Plural(n int, noun string) string {
	if n != 1 {
		noun = PluralOf(noun)
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// PluralOf returns the plural of a noun.
func PluralOf(noun string) string {
	switch stem, isY := strings.CutSuffix(noun, "y"); {
	case isY && !strings.HasSuffix(stem, "a"): // such as proxy, unlike gateway
		return stem + "ies"
	case strings.HasSuffix(noun, "s") || strings.HasSuffix(noun, "ch") || strings.HasSuffix(noun, "sh"):
		return noun + "es"
	}
	return noun + "s"
}

// LastLine returns the last line of a text that is not empty.
func LastLine(text string) string {
	text = strings.TrimSpace(text)
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}

// shownFew is the number of values that a table shows of a long list.
const shownFew = 5

// FirstFew joins the first values, and adds the number of others.
func FirstFew(values []string, separator string) string { return First(shownFew, values, separator) }

// First joins at most n values, and adds the number of others.
func First(n int, values []string, separator string) string {
	if len(values) > n {
		values = append(slices.Clone(values[:n]), fmt.Sprintf("+%d", len(values)-n))
	}
	return strings.Join(values, separator)
}

// FewNotes returns the first notes, and one with the number of others.
func FewNotes(notes []string) []string {
	if len(notes) > shownFew {
		return append(slices.Clone(notes[:shownFew]), fmt.Sprintf("%d more: see -o yaml", len(notes)-shownFew))
	}
	return notes
}

// ShortDuration formats a duration for a table, rounded down to one unit.
func ShortDuration(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d >= 2*time.Minute:
		return fmt.Sprintf("%dm", d/time.Minute)
	default:
		return fmt.Sprintf("%ds", d/time.Second)
	}
}

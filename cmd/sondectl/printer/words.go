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
	case isY && !strings.HasSuffix(stem, "a"): // not of gateway
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

// shownFew is how many of many values a table shows.
const shownFew = 5

// FirstFew joins the first values, and says how many more there are.
func FirstFew(values []string, separator string) string {
	if len(values) > shownFew {
		values = append(slices.Clone(values[:shownFew]), fmt.Sprintf("+%d", len(values)-shownFew))
	}
	return strings.Join(values, separator)
}

// FewNotes returns the first notes, and one that says how many more there are.
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

package mesh

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a time.Duration whose text form also has years (365 days), weeks and days, as in Kuma: "10y", "1d12h". A
// text is always longer than zero: zero means that the field was omitted.
//
// +kubebuilder:validation:Type=string
type Duration time.Duration

const (
	day  = 24 * time.Hour
	week = 7 * day
	year = 365 * day
)

// AllowedDuration describes the text form in errors.
const AllowedDuration = `must be a duration longer than 0, such as "30m", "24h", "1d12h" or "10y"`

var errDuration = errors.New(AllowedDuration)

// ParseDuration parses whole years, weeks and days (y, w, d, each at most once and in this order), followed by what
// time.ParseDuration accepts.
func ParseDuration(text string) (Duration, error) {
	rest, sum := text, time.Duration(0)
	for _, unit := range []struct {
		letter string
		length time.Duration
	}{{"y", year}, {"w", week}, {"d", day}} {
		digits, after, found := strings.Cut(rest, unit.letter)
		if !found {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 32)
		if err != nil || time.Duration(n) > (math.MaxInt64-sum)/unit.length {
			return 0, errDuration
		}
		rest, sum = after, sum+time.Duration(n)*unit.length
	}
	if rest != "" {
		d, err := time.ParseDuration(rest)
		if err != nil || d < 0 || d > math.MaxInt64-sum {
			return 0, errDuration
		}
		sum += d
	}
	if sum <= 0 {
		return 0, errDuration
	}
	return Duration(sum), nil
}

// Std returns d as a time.Duration.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String returns the text form, with years and days if d is that long.
func (d Duration) String() string {
	rest := time.Duration(d)
	if rest <= 0 {
		return rest.String()
	}
	var b strings.Builder
	for _, unit := range []struct {
		letter string
		length time.Duration
	}{{"y", year}, {"d", day}} {
		// A single day stays "24h", as in manifests.
		if n := rest / unit.length; n > 1 || n == 1 && (b.Len() > 0 || unit.length == year) {
			fmt.Fprintf(&b, "%d%s", n, unit.letter)
			rest %= unit.length
		}
	}
	if rest > 0 {
		text := rest.String()
		if strings.HasSuffix(text, "m0s") {
			text = strings.TrimSuffix(text, "0s")
		}
		if strings.HasSuffix(text, "h0m") {
			text = strings.TrimSuffix(text, "0m")
		}
		b.WriteString(text)
	}
	return b.String()
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := ParseDuration(string(text))
	if err != nil {
		return err
	}
	*d = parsed
	return nil
}

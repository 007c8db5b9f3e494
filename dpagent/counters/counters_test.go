package counters

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	tests := map[string]struct {
		page, wantErr string
		want          Values
	}{
		"counters":       {page: "a.b: 1\n\nc: 18446744073709551615\n", want: Values{"a.b": 1, "c": 1<<64 - 1}},
		"nothing":        {want: Values{}},
		"another page":   {page: "<html>\n", wantErr: `envoy's statistics: "<html>": must be a counter and a number`},
		"no number":      {page: "a: many\n", wantErr: "must be a counter and a number"},
		"a long line":    {page: strings.Repeat("a", 1000), wantErr: strings.Repeat("a", 200) + `": must`},
		"too many lines": {page: "a: 1\nb: 1\nc: 1\n", wantErr: "envoy has more than 2 counters"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Parse([]byte(tc.page), 2)
			if (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("Parse() error = %v, want %q", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestSince(t *testing.T) {
	got, err := Values{"grown": 5, "new": 2, "of another Envoy": 3, "same": 1}.Since(Values{"grown": 2, "of another Envoy": 9, "same": 1, "gone": 7})
	if diff := cmp.Diff(Values{"grown": 3, "new": 2, "of another Envoy": 3, "same": 0}, got); diff != "" || err != nil {
		t.Errorf("Since() error = %v, -want +got:\n%s", err, diff)
	}
	if _, err := (Values{"a": 1<<40 + 2}).Since(Values{"a": 1}); err == nil {
		t.Error("Since() accepts a growth that is too large")
	}
}

package cut_test

import (
	"testing"

	"github.com/sonde-mesh/sonde/internal/cut"
)

func TestCut(t *testing.T) {
	tests := []struct {
		text        string
		most        int
		cut, marked string
	}{
		{"", 4, "", ""},
		{"abcd", 4, "abcd", "abcd"},
		{"abcde", 4, "abcd", "a…"},
		{"aäö", 4, "aä", "a…"},
		{"ääää", 6, "äää", "ä…"},
		{"a\xffb", 8, "a?b", "a?b"},
	}
	for _, tc := range tests {
		if got := cut.Text(tc.text, tc.most); got != tc.cut {
			t.Errorf("Text(%q, %d) = %q, want %q", tc.text, tc.most, got, tc.cut)
		}
		if got := cut.Marked(tc.text, tc.most); got != tc.marked {
			t.Errorf("Marked(%q, %d) = %q, want %q", tc.text, tc.most, got, tc.marked)
		}
	}
}

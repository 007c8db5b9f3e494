package scrape

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// pass returns the output for statistics that arrive in parts of a size, and the number of dropped lines.
func pass(t testing.TB, keep []string, text string, size int) (out string, dropped int) {
	t.Helper()
	var to strings.Builder
	l := newLines(&to, keep)
	for rest := text; rest != ""; {
		n := min(size, len(rest))
		if _, err := l.Write([]byte(rest[:n])); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	if err := l.end(); err != nil {
		t.Fatal(err)
	}
	return to.String(), l.dropped
}

// labels returns n labels.
func labels(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("l%d=%q", i, "x")
	}
	return strings.Join(all, ",")
}

func TestLines(t *testing.T) {
	long := func(n int) string { return `envoy_a{b="` + strings.Repeat("x", n) + "\"} 1\n" }
	longest := maxLine - len(long(0)) + 1 // without its line end
	all := []string{"envoy_"}
	tests := map[string]struct {
		keep    []string
		text    string
		want    string
		dropped int
	}{
		"one of each type": {all, "# TYPE envoy_a counter\nenvoy_a 1\n# TYPE envoy_b histogram\nenvoy_b_bucket{le=\"+Inf\"} 1\n",
			"# TYPE envoy_a counter\nenvoy_a 1\n# TYPE envoy_b histogram\nenvoy_b_bucket{le=\"+Inf\"} 1\n", 0},
		"some names": {[]string{"envoy_b", "envoy_c_"}, "# TYPE envoy_a counter\nenvoy_a 1\n# TYPE envoy_b counter\nenvoy_b{x=\"y\"} 1\nenvoy_bc 1\nenvoy_c 1\nenvoy_c_d 1\n",
			"# TYPE envoy_b counter\nenvoy_b{x=\"y\"} 1\nenvoy_bc 1\nenvoy_c_d 1\n", 0},
		"unwanted lines may be invalid": {all, "other{ 1\n", "", 0},
		"all names":                     {nil, "other 1\n", "other 1\n", 0},
		"values": {all, "envoy_a 0\nenvoy_b -1\nenvoy_c 18446744073709551615\nenvoy_d 1.7976931348623157e+308\nenvoy_e nan\nenvoy_f NaN\nenvoy_g inf\nenvoy_h -Inf\n",
			"envoy_a 0\nenvoy_b -1\nenvoy_c 18446744073709551615\nenvoy_d 1.7976931348623157e+308\nenvoy_e nan\nenvoy_f NaN\nenvoy_g inf\nenvoy_h -Inf\n", 0},
		"invalid values": {all, "envoy_a -nan\nenvoy_b nan(ind)\nenvoy_c 1e999\nenvoy_d 0x1p-2\nenvoy_e 1_000\nenvoy_f\nenvoy_g \nenvoy_h  1\nenvoy_i 1 2 3\nenvoy_j\t1\n", "", 10},
		"labels":         {all, `envoy_a{} 1` + "\n" + `envoy_a{b="}\" \\ \n",c_1="é",} 1` + "\n", `envoy_a{} 1` + "\n" + `envoy_a{b="}\" \\ \n",c_1="é",} 1` + "\n", 0},
		"invalid labels": {
			all, "envoy_a{ 1\nenvoy_a{b} 1\nenvoy_a{b=\"} 1\nenvoy_a{b=\"c\"\nenvoy_a{b=\"c\"d=\"e\"} 1\nenvoy_a{b=\"\\x\"} 1\nenvoy_a{:b=\"c\"} 1\nenvoy_a{1=\"c\"} 1\nenvoy_a{,} 1\nenvoy_a{b=\"1\",c=\"\",b=\"2\"} 1\nenvoy_a{__name__=\"b\"} 1\n", "", 11,
		},
		"too many labels": {all, "envoy_a{" + labels(maxLabels) + "} 1\nenvoy_b{" + labels(maxLabels+1) + "} 1\n", "envoy_a{" + labels(maxLabels) + "} 1\n", 1},
		"invalid UTF-8":   {all, "envoy_a{b=\"\xff\"} 1\n", "", 1},
		"no name":         {all, " 1\n{a=\"b\"} 1\n\x00\n", "", 3},
		"comments":        {all, "#\n# HELP envoy_a A.\n# anything\n# TYPE other counter\n# EOF\n\n", "", 0},
		"invalid types":   {all, "# TYPE envoy_a\n# TYPE envoy_a chart\n# TYPE envoy_a-b counter\n# TYPE envoy_a  counter\n", "", 4},
		"DOS line ends":   {all, "envoy_a 1\r\n", "envoy_a 1\n", 0},
		"a long line":     {all, long(longest), long(longest), 0},
		"too long a line": {all, long(longest+1) + long(3*maxLine) + "envoy_b 1\n", "envoy_b 1\n", 2},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{1, 7, maxLine, 1 << 20} {
				got, dropped := pass(t, tc.keep, tc.text, size)
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("in parts of %d (-want +got):\n%s", size, diff)
				}
				if dropped != tc.dropped {
					t.Errorf("in parts of %d: %d lines were dropped, want %d", size, dropped, tc.dropped)
				}
			}
		})
	}
}

// FuzzLines checks that a parser of the format accepts each line that is passed on, whatever the input, and that the
// output does not depend on how the input is split.
func FuzzLines(f *testing.F) {
	for _, seed := range []string{
		"# TYPE envoy_a counter\nenvoy_a{b=\"c\",d=\"\\\"}\\n\"} 18446744073709551615\n", "envoy_a -nan\nenvoy_b 1e999\n", "envoy_a{b=\"\xff\"} 1", "envoy_a{b=\"", "\x00\r\n\n#",
	} {
		f.Add(seed, uint8(3))
	}
	f.Fuzz(func(t *testing.T, text string, size uint8) {
		got, dropped := pass(t, nil, text, len(text)+1)
		if again, same := pass(t, nil, text, int(size)+1); again != got || same != dropped {
			t.Errorf("in parts of %d: %q with %d dropped, as a whole: %q with %d", int(size)+1, again, same, got, dropped)
		}
		for line := range strings.Lines(got) {
			parser := expfmt.NewTextParser(model.UTF8Validation)
			if _, err := parser.TextToMetricFamilies(strings.NewReader(line)); err != nil {
				t.Errorf("%q: %v", line, err)
			}
		}
	})
}

// BenchmarkLines parses the statistics of an Envoy with 1,000 services.
func BenchmarkLines(b *testing.B) {
	var page strings.Builder
	for _, name := range []string{"envoy_cluster_membership_total", "envoy_cluster_membership_healthy", "envoy_cluster_update_success"} {
		fmt.Fprintf(&page, "# TYPE %s gauge\n", name)
		for i := range 1000 {
			fmt.Fprintf(&page, "%s{envoy_cluster_name=\"service-%04d_shop_svc_8080\"} 1\n", name, i)
		}
	}
	for b.Loop() {
		pass(b, []string{"envoy_server_", "envoy_cluster_membership_"}, page.String(), 32<<10)
	}
}

package descriptors_test

import (
	"bytes"
	"log/slog"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/internal/descriptors"
)

func TestShare(t *testing.T) {
	own := descriptors.Use{Name: "files", Least: 20, Most: 20}
	health := descriptors.Use{Name: "health", Least: 10, Most: 100}
	agents := descriptors.Use{Name: "agents", Least: 40, Most: 1000}
	proxies := descriptors.Use{Name: "proxies", Least: 30}
	for name, tc := range map[string]struct {
		limit int
		uses  []descriptors.Use
		want  descriptors.Shares
		err   string
	}{
		"what is needed":               {70, []descriptors.Use{own, health, agents}, descriptors.Shares{"files": 20, "health": 10, "agents": 40}, ""},
		"more, in proportion":          {270, []descriptors.Use{own, health, agents}, descriptors.Shares{"files": 20, "health": 50, "agents": 200}, ""},
		"whoever has enough leaves it": {620, []descriptors.Use{own, health, agents}, descriptors.Shares{"files": 20, "health": 100, "agents": 500}, ""},
		"enough for all":               {math.MaxInt32, []descriptors.Use{own, health, agents}, descriptors.Shares{"files": 20, "health": 100, "agents": 1000}, ""},
		"one without a limit":          {100000, []descriptors.Use{own, health, agents, proxies}, descriptors.Shares{"files": 20, "health": 100, "agents": 1000, "proxies": 98880}, ""},
		"one that is left over":        {1000, []descriptors.Use{proxies}, descriptors.Shares{"proxies": 1000}, ""},
		"too few":                      {69, []descriptors.Use{own, health, agents}, nil, "open files (RLIMIT_NOFILE, ulimit -Hn): 69: must be at least 70: 20 for files, 10 for health, 40 for agents"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := descriptors.Share(tc.limit, tc.uses...)
			if tc.err != "" {
				if err == nil || err.Error() != tc.err {
					t.Fatalf("error %v, want %s", err, tc.err)
				}
				return
			}
			if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
				t.Errorf("error %v, shares (-want +got):\n%s", err, diff)
			}
			sum := 0
			for _, n := range got {
				sum += n
			}
			if sum > tc.limit {
				t.Errorf("the shares of %d are %d", tc.limit, sum)
			}
		})
	}
}

func TestWarn(t *testing.T) {
	uses := []descriptors.Use{{Name: "health", Least: 10, Most: 100}, {Name: "proxies", Least: 30}}
	for name, tc := range map[string]struct {
		limit int
		want  string
	}{
		"enough":  {400, ""},
		"too few": {80, `"limit":80,"recommended":400,"shares":{"health":20,"proxies":60}`},
	} {
		t.Run(name, func(t *testing.T) {
			shares, err := descriptors.Share(tc.limit, uses...)
			if err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			shares.Warn(slog.New(slog.NewJSONHandler(&log, nil)), tc.limit, uses...)
			if got := log.String(); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("logged %q, want %q", got, tc.want)
			}
		})
	}
}

package logging_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/internal/logging"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// entry is a line of the log.
type entry struct {
	Level, Msg, Message, Within string
	Count                       int
}

// entries returns the lines of a log with their counts; equal lines appear once.
func entries(t *testing.T, log *bytes.Buffer) map[entry]int {
	t.Helper()
	all := map[entry]int{}
	for lines := json.NewDecoder(log); ; {
		var e entry
		if err := lines.Decode(&e); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all[e]++
	}
}

func TestOutsidersCannotFillTheLog(t *testing.T) {
	refused := entry{Level: "WARN", Msg: "refused"}
	leftOut := func(count int) entry {
		return entry{Level: "WARN", Msg: "suppressed log lines", Message: "refused", Count: count, Within: "10s"}
	}
	for name, tc := range map[string]struct {
		write func(log *slog.Logger)
		want  map[entry]int
	}{
		"one address": {
			func(log *slog.Logger) {
				for port := range 1000 {
					log.Warn("refused", "peer", fmt.Sprintf("10.0.0.1:%d", port))
				}
			},
			map[entry]int{refused: 20, leftOut(980): 1},
		},
		"one address as several proxies": {
			func(log *slog.Logger) {
				for n := range 1000 {
					log.With("peer", "10.0.0.1").Warn("refused", "proxy", fmt.Sprint("web-", n))
				}
			},
			map[entry]int{refused: 20, leftOut(980): 1},
		},
		"one network of IPv6": {
			func(log *slog.Logger) {
				for n := range 1000 {
					log.Warn("refused", "peer", fmt.Sprintf("[2001:db8::%x]:1", n+1))
				}
			},
			map[entry]int{refused: 20, leftOut(980): 1},
		},
		"a proxy": {
			func(log *slog.Logger) {
				for range 100 {
					log.With("mesh", "default", "proxy", "web-1").Warn("refused")
				}
			},
			map[entry]int{refused: 20, leftOut(80): 1},
		},
		"many addresses": {
			func(log *slog.Logger) {
				for n := range 5000 {
					log.Warn("refused", "peer", fmt.Sprintf("10.0.%d.%d", n/250, n%250))
				}
			},
			map[entry]int{refused: 200, leftOut(4800): 1},
		},
		"another message of the same address": {
			func(log *slog.Logger) {
				for range 100 {
					log.Warn("refused", "peer", "10.0.0.1")
				}
				log.Info("joined", "peer", "10.0.0.1")
			},
			map[entry]int{refused: 20, {Level: "INFO", Msg: "joined"}: 1, leftOut(80): 1},
		},
		"another address of the same message": {
			func(log *slog.Logger) {
				for range 100 {
					log.Warn("refused", "peer", "10.0.0.1")
				}
				log.Error("refused", "peer", "10.0.0.2")
			},
			map[entry]int{refused: 20, {Level: "ERROR", Msg: "refused"}: 1, leftOut(80): 1},
		},
		"slowly": {
			func(log *slog.Logger) {
				for range 60 {
					log.Warn("refused", "peer", "10.0.0.1")
					<-time.After(time.Second)
				}
			},
			map[entry]int{refused: 60},
		},
		"again and again": {
			func(log *slog.Logger) {
				for range 2 {
					for range 100 {
						log.Warn("refused", "peer", "10.0.0.1")
					}
					<-time.After(time.Minute)
				}
			},
			map[entry]int{refused: 40, leftOut(80): 2},
		},
		"lines of the program itself": {
			func(log *slog.Logger) {
				for n := range 1000 {
					log.With("mesh", "default").Warn("refused", "file", fmt.Sprint(n, ".yaml"))
				}
			},
			map[entry]int{refused: 1000},
		},
		"what is only for debugging": {
			func(log *slog.Logger) {
				for range 1000 {
					log.Debug("refused", "peer", "10.0.0.1")
				}
			},
			map[entry]int{{Level: "DEBUG", Msg: "refused"}: 1000},
		},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			var log bytes.Buffer
			tc.write(logging.New(&log, slog.LevelDebug, logging.JSON))
			<-time.After(time.Minute) // longer than the interval of the suppression count
			synctest.Wait()
			if diff := cmp.Diff(tc.want, entries(t, &log)); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

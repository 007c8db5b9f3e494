package logging

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestValues(t *testing.T) {
	tests := map[string]struct {
		value any
		want  string
	}{
		"minutes":           {90 * time.Second, `"1m30s"`},
		"hours":             {time.Hour, `"1h"`},
		"days":              {50 * time.Hour, `"2d2h"`},
		"too many digits":   {1234567891 * time.Nanosecond, `"1.235s"`},
		"milliseconds":      {12345678 * time.Nanosecond, `"12.346ms"`},
		"microseconds":      {1500 * time.Nanosecond, `"1.5µs"`},
		"none":              {time.Duration(0), `"0s"`},
		"back":              {-90 * time.Second, `"-1m30s"`},
		"a number":          {7, `7`},
		"a text":            {"rpc error: code = X desc = y", `"rpc error: code = X desc = y"`},
		"an error":          {errors.New("no token"), `"no token"`},
		"no error":          {error(nil), `null`},
		"an error of gRPC":  {fmt.Errorf("join: %w", status.Error(codes.Unavailable, "no view yet")), `"join: no view yet"`},
		"attributes of its": {slog.GroupValue(slog.Duration("took", time.Minute)), `{"took":"1m"}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			New(&out, slog.LevelInfo, JSON).Info("said", "value", tc.value)
			want := regexp.MustCompile(`^\{"time":"[^"]+","level":"INFO","msg":"said","value":` + regexp.QuoteMeta(tc.want) + "}\n$")
			if !want.Match(out.Bytes()) {
				t.Errorf("line = %s, want the value %s", out.Bytes(), tc.want)
			}
		})
	}
}

func TestLevel(t *testing.T) {
	var out bytes.Buffer
	New(&out, slog.LevelWarn, JSON).Info("said")
	if out.Len() > 0 {
		t.Errorf("line = %s, want none below the level", out.Bytes())
	}
}

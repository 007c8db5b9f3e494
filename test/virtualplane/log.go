package virtualplane

import (
	"log/slog"
	"strings"
)

// Log returns a logger that calls write for each line, without its time.
func Log(write func(line string)) *slog.Logger {
	untimed := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	return slog.New(slog.NewTextHandler(lines(write), &slog.HandlerOptions{
		Level: slog.LevelDebug, ReplaceAttr: untimed,
	}))
}

type lines func(line string)

// Write implements io.Writer.
func (l lines) Write(line []byte) (int, error) {
	l(strings.TrimSpace(string(line)))
	return len(line), nil
}

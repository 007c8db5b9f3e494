package envoy

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestForward(t *testing.T) {
	key := strings.Repeat("MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0w", 2)
	tests := map[string]struct{ line, want, last string }{
		"a warning": {
			line: `warning|config|gRPC config: a | b`,
			want: `level=WARN msg="envoy log" logger=config text="gRPC config: a | b"`,
		},
		"a fatal error": {
			line: `critical|main|error initializing`,
			want: `level=ERROR msg="envoy log" logger=main text="error initializing"`,
			last: "error initializing",
		},
		"not a log line": {line: `hello|you`, want: `level=INFO msg="envoy log" logger=output text=hello|you`, last: "hello|you"},
		"an error after other output": {
			line: "PARSE ERROR: Argument: (-x)\nerror|main|exiting", want: `text="PARSE ERROR: Argument: (-x)"`, last: "exiting",
		},
		"a key by its name": {
			line: `warning|config|Unable to read: {"private_key":{"inline_string":"x`,
			want: `text="(withheld: contains a private key)"`,
		},
		"a file that does not parse": {
			line: `warning|config|Filesystem config update failure: in sds/identity.json, Unable to parse JSON as proto (INVALID_ARGUMENT: a MIGHAgEAMBMG): MIGHAgEAMBMG`,
			want: `text="Filesystem config update failure: in sds/identity.json, Unable to parse JSON as proto (rest withheld)"`,
		},
		"a run of base64": {line: "error|config|" + key, want: `text="(withheld: contains a private key)"`, last: "(withheld: contains a private key)"},
		"a warning about what Sonde sets on purpose": {
			line: `warning|misc|field \'envoy.config.core.v3.Http1ProtocolOptions.allow_custom_methods\' is marked as work-in-progress. Do not` + "\ninfo|main|other", want: "text=other",
		},
		"a long line": {line: "info|main|" + strings.Repeat("long ", 2000), want: "cut=true"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			f := newForwarder(slog.New(slog.NewTextHandler(&out, nil)))
			f.forward(strings.NewReader(tc.line + "\ninfo|main|next\n"))
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if len(lines) < 2 || !strings.Contains(lines[0], tc.want) || !strings.Contains(lines[len(lines)-1], "text=next") {
				t.Errorf("forward() logs %q, want %q and the next line", lines, tc.want)
			}
			if len(lines[0]) > maxLine+200 {
				t.Errorf("forward() logs a line of %d bytes", len(lines[0]))
			}
			if strings.Contains(out.String(), key) {
				t.Error("forward() logs the key")
			}
			if last := f.lastError(); last != tc.last {
				t.Errorf("last error = %q, want %q", last, tc.last)
			}
			f.lastAt, f.outputAt = f.lastAt.Add(-time.Minute), f.outputAt.Add(-time.Minute)
			if last := f.lastError(); last != "" {
				t.Errorf("a minute later the last error = %q", last)
			}
		})
	}
}

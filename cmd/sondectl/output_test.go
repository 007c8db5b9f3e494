package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/internal/reach"
	"github.com/sonde-mesh/sonde/internal/settings"
)

func TestWriteYAML(t *testing.T) {
	tests := map[string]struct {
		in   any
		want string
	}{
		"short fields before long ones, else in order": {
			struct {
				B []int  `json:"b"`
				A string `json:"a"`
				C int    `json:"c"`
			}{[]int{1}, "x", 2}, "a: x\nc: 2\nb:\n  - 1\n",
		},
		"numbers stay as they are":   {map[string]any{"n": 4294967295, "f": 0.5, "big": int64(1) << 60}, "big: 1152921504606846976\nf: 0.5\n\"n\": 4294967295\n"},
		"text that looks otherwise":  {[]string{"yes", "y", "1", "0x1", "null", "1e3", "", "a: b"}, "- \"yes\"\n- \"y\"\n- \"1\"\n- \"0x1\"\n- \"null\"\n- \"1e3\"\n- \"\"\n- 'a: b'\n"},
		"lines":                      {map[string]string{"pem": "a\nb\n"}, "pem: |\n  a\n  b\n"},
		"characters of control":      {[]string{"a\x1b[31mb\x7f\u0085"}, "- \"a\\e[31mb\\x7F\\N\"\n"},
		"empty ones":                 {map[string]any{"l": []int{}, "m": map[string]int{}, "n": nil}, "\"n\": null\nl: []\nm: {}\n"},
		"what JSON escapes for HTML": {[]string{"<&>"}, "- <&>\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := writeYAML(&out, tc.in); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("writeYAML() (-want +got):\n%s", diff)
			}
		})
	}
}

func FuzzWriteYAML(f *testing.F) {
	f.Add("a\x1b[31m\r\n\tb")
	f.Add("- x: y # z")
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "?")
		var out bytes.Buffer
		if err := writeYAML(&out, map[string]string{"k": text}); err != nil {
			t.Fatal(err)
		}
		var back map[string]string
		if err := yaml.Unmarshal(out.Bytes(), &back); err != nil || back["k"] != text {
			t.Errorf("%q became %q, %v", text, back["k"], err)
		}
	})
}

func TestWriteTable(t *testing.T) {
	var out bytes.Buffer
	rows := []row{
		{cells: []string{"ä", "", "last"}},
		{cells: []string{"longer", "x\ty\x1b[1m", ""}, notes: []string{"why:\nbecause"}},
	}
	if err := writeTable(&out, []string{"A", "B", "C"}, rows); err != nil {
		t.Fatal(err)
	}
	want := "A        B         C\nä        -         last\nlonger   x y [1m   -\n  why: because\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("writeTable() (-want +got):\n%s", diff)
	}
}

// TestHostileTable shows that one name that is longer than others shifts its own row alone, and that no text moves others.
func TestHostileTable(t *testing.T) {
	long := strings.Repeat("x", 253)
	rows := []row{
		{cells: []string{"default", long, "1/2"}},
		{cells: []string{"default", "web", "1/2"}, notes: []string{"\u202egnp.exe \x9b31m \u2028next\xff"}},
		{cells: []string{"default", strings.Repeat("y", maxWidth), "0/0"}},
	}
	var out bytes.Buffer
	if err := writeTable(&out, []string{"MESH", "NAME", "ENDPOINTS"}, rows); err != nil {
		t.Fatal(err)
	}
	pad := strings.Repeat(" ", maxWidth)
	want := "MESH      NAME" + pad[4:] + "   ENDPOINTS\n" +
		"default   " + long + "   1/2\n" +
		"default   web" + pad[3:] + "   1/2\n  gnp.exe \ufffd31m  next\ufffd\n" +
		"default   " + strings.Repeat("y", maxWidth) + "   0/0\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("writeTable() (-want +got):\n%s", diff)
	}
}

func TestUntil(t *testing.T) {
	tests := map[string]struct {
		left time.Duration
		want string
	}{
		"days":               {90*24*time.Hour + time.Hour, "90d"},
		"nearly two days":    {48 * time.Hour, "2d"},
		"hours":              {47 * time.Hour, "47h"},
		"a token of a day":   {24 * time.Hour, "24h"},
		"a day and a half":   {36*time.Hour + 29*time.Minute, "36h"},
		"nearly two hours":   {2 * time.Hour, "2h"},
		"minutes":            {119 * time.Minute, "119m"},
		"a token of an hour": {time.Hour, "60m"},
		"seconds":            {100 * time.Second, "100s"},
		"less than a second": {400 * time.Millisecond, "0s"},
		"past":               {-time.Second, "expired"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := timeUntil(timestamppb.New(time.Now().Add(tc.left - time.Millisecond))); got != tc.want {
				t.Errorf("until(%s) = %q, want %q", tc.left, got, tc.want)
			}
		})
	}
	if got := timeUntil(nil); got != "" {
		t.Errorf("until(nil) = %q", got)
	}
}

func TestExplain(t *testing.T) {
	tests := map[string]struct {
		dial, handshake, err error
		code                 int
		want                 string
	}{
		"nobody there":      {errors.New("connection refused"), nil, status.Error(codes.Unavailable, "x"), exitUnreachable, "no control plane at HOST:1: connection refused"},
		"impostor":          {nil, &tls.CertificateVerificationError{Err: errors.New("unknown authority")}, status.Error(codes.Unavailable, "x"), exitFailed, "is not the one that --ca-cert-file names: unknown authority"},
		"not ready":         {nil, nil, status.Error(codes.Unavailable, "no view yet"), exitUnreachable, "is not available: no view yet"},
		"hangs":             {nil, nil, status.Error(codes.DeadlineExceeded, "x"), exitUnreachable, "the control plane at HOST:1 did not answer in time"},
		"refuses":           {nil, nil, status.Error(codes.NotFound, "mesh not found"), exitFailed, "mesh not found"},
		"an answer is odd":  {nil, nil, errors.New("decode a Mesh"), exitFailed, "decode a Mesh"},
		"wrong use of flag": {nil, nil, settings.Usagef("bad"), exitUsage, "bad"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			watch := &reach.Watch{Service: reach.Admin, Address: "HOST:1"}
			watch.Dialed(tc.dial)
			watch.Handshaken(tc.handshake)
			err := explainError(watch, tc.err)
			if got := exitCode(err); got != tc.code || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("explain() = %v (exit code %d), want %q (%d)", err, got, tc.want, tc.code)
			}
		})
	}
}

// failing is a standard output whose reader is gone.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, net.ErrClosed }

func TestAnOutputThatCannotBeWrittenIsAFailure(t *testing.T) {
	var stderr bytes.Buffer
	code := run(context.Background(), []string{"--help"}, strings.NewReader(""), failing{}, &stderr)
	if code != exitFailed || !strings.HasPrefix(stderr.String(), "sondectl: write the output: ") {
		t.Errorf("exit code %d, stderr %q", code, &stderr)
	}
}

func TestAStepOfALaterControlPlane(t *testing.T) {
	got := rotationText("default", &adminv1.Rotation{Step: 17})
	if want := "mesh default: a step that this sondectl does not know: 17\n"; got != want {
		t.Errorf("rotationText() = %q, want %q", got, want)
	}
}

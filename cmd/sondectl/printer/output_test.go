package printer

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
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
			var out Output
			if err := WriteYAML(&out, tc.in); err != nil {
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
		var out Output
		if err := WriteYAML(&out, map[string]string{"k": text}); err != nil {
			t.Fatal(err)
		}
		var back map[string]string
		if err := yaml.Unmarshal(out.Bytes(), &back); err != nil || back["k"] != text {
			t.Errorf("%q became %q, %v", text, back["k"], err)
		}
	})
}

func TestWriteTable(t *testing.T) {
	var out Output
	rows := []Row{
		{Cells: []string{"ä", "", "last"}},
		{Cells: []string{"longer", "x\ty\x1b[1m", ""}, Notes: []string{"why:\nbecause"}},
	}
	WriteTable(&out, []string{"A", "B", "C"}, rows)
	want := "A        B         C\nä        -         last\nlonger   x y [1m   -\n  why: because\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("writeTable() (-want +got):\n%s", diff)
	}
}

// TestHostileTable shows that a very long name only shifts its own row, and that no text affects other rows.
func TestHostileTable(t *testing.T) {
	long := strings.Repeat("x", 253)
	rows := []Row{
		{Cells: []string{"default", long, "1/2"}},
		{Cells: []string{"default", "web", "1/2"}, Notes: []string{"\u202egnp.exe \x9b31m \u2028next\xff"}},
		{Cells: []string{"default", strings.Repeat("y", maxWidth), "0/0"}},
	}
	var out Output
	WriteTable(&out, []string{"MESH", "NAME", "ENDPOINTS"}, rows)
	pad := strings.Repeat(" ", maxWidth)
	want := "MESH      NAME" + pad[4:] + "   ENDPOINTS\n" +
		"default   " + long + "   1/2\n" +
		"default   web" + pad[3:] + "   1/2\n  gnp.exe \ufffd31m  next\ufffd\n" +
		"default   " + strings.Repeat("y", maxWidth) + "   0/0\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("writeTable() (-want +got):\n%s", diff)
	}
}

func TestEscape(t *testing.T) {
	var out Output
	text := "\x1b[31mred\ttab\u009b1m\xff\u202e\n"
	if n, err := (escaping{&out}).Write([]byte(text)); n != len(text) || err != nil {
		t.Errorf("Write() = %d, %v, want %d", n, err, len(text))
	}
	if want := `\u001b[31mred` + "\t" + `tab\u009b1m\xff\u202e` + "\n"; out.String() != want {
		t.Errorf("a terminal gets %q, want %q", out.String(), want)
	}
}

package sondectl_test

import (
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal returns both ends of a terminal.
func terminal(t *testing.T) (outer, inner *os.File) {
	t.Helper()
	outer, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = outer.Close() })
	fd := int(outer.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	inner, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return outer, inner
}

// TestTerminal prints an object as text: a program gets the text unchanged, and a terminal gets no control
// characters.
func TestTerminal(t *testing.T) {
	const comment = "# \u202egnp.exe\n"
	file := write(t, "object.yaml", comment+"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: b}\nspec: {containers: [{name: app}]}\n")
	piped, err := sondectl(t, "inject", "-f", file).Output()
	if err != nil || !strings.HasPrefix(string(piped), comment) {
		t.Errorf("a program gets %q, %v, want the file's text", piped, err)
	}
	outer, inner := terminal(t)
	cmd := sondectl(t, "inject", "-f", file)
	cmd.Stdout = inner
	err = cmd.Run()
	_ = inner.Close()             // the only file descriptor of this end
	shown, _ := io.ReadAll(outer) // the error reports that the other end is closed
	if err != nil || !strings.HasPrefix(string(shown), `# \u202egnp.exe`) {
		t.Errorf("a terminal gets %q, %v, want no control characters", shown, err)
	}
}

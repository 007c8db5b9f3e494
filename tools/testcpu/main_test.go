package main

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// envRole makes the test program play a role.
const envRole = "TEST_TESTCPU_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(envRole) {
	case "":
		os.Exit(m.Run())
	case "pass":
	case "fail":
		os.Exit(3)
	case "work": // half a second of CPU time
		var used syscall.Rusage
		for used.Utime.Nano()+used.Stime.Nano() < int64(500*time.Millisecond) {
			if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
				os.Exit(4)
			}
		}
	case "killed":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "signalled": // signals its parent, and waits for the signal to come back
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGQUIT)
		_ = syscall.Kill(os.Getppid(), syscall.SIGQUIT)
		<-signals
		os.Exit(7)
	}
}

// logged runs this program in a role, and returns its exit code and the log.
func logged(t *testing.T, role string) (code int, log string, err error) {
	t.Helper()
	t.Setenv(envRole, role)
	path := filepath.Join(t.TempDir(), "log")
	directory, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	t.Setenv("TESTCPU_LOG", path)
	code, err = run([]string{"-root=" + filepath.Dir(directory), os.Args[0], "-test.run=none"}, &out, &out)
	data, readErr := os.ReadFile(path)
	if readErr != nil {
		t.Fatal(readErr)
	}
	return code, string(data), err
}

func TestExitCode(t *testing.T) {
	for role, want := range map[string]int{"pass": 0, "fail": 3, "killed": 128 + 9, "signalled": 7} {
		t.Run(role, func(t *testing.T) {
			code, log, err := logged(t, role)
			if code != want || err != nil || !strings.HasSuffix(log, " testcpu\n") {
				t.Errorf("run() = %d, %v, log %q, want %d and a line of testcpu", code, err, log, want)
			}
		})
	}
}

func TestCPUTime(t *testing.T) {
	if _, log, err := logged(t, "work"); err != nil || log < "0.5" {
		t.Errorf("log = %q, %v, want 0.5 s or more", log, err)
	}
}

func TestBudget(t *testing.T) {
	for _, test := range []struct {
		entry
		want string
	}{
		{entry{"a", 29 * time.Second, 1}, "<nil>"},
		{entry{"a", 31 * time.Second, 1}, "a used 31.0 s of CPU time, over 3 times its budget of 10s: make its tests cheaper, or move them to test/real"},
		{entry{"a", 59 * time.Second, 2}, "<nil>"},
		{entry{"a", 61 * time.Second, 2}, "a used 61.0 s at a slowness of 2.0 of CPU time, over 3 times its budget of 10s: make its tests cheaper, or move them to test/real"},
	} {
		if got := fmt.Sprint(test.judge()); got != test.want {
			t.Errorf("judge() of %s = %s, want %s", test.entry, got, test.want)
		}
	}
}

func TestSlowness(t *testing.T) {
	slowness, err := measureSlowness()
	if err != nil || slowness <= 0 {
		t.Fatalf("measureSlowness() = %v, %v, want more than 0", slowness, err)
	}
}

func TestMean(t *testing.T) {
	for _, test := range []struct {
		samples []float64
		want    float64
	}{{nil, 1}, {[]float64{2}, 2}, {[]float64{1, 3, 2}, 2}} {
		if got := mean(test.samples); got != test.want {
			t.Errorf("mean(%v) = %v, want %v", test.samples, got, test.want)
		}
	}
}

// A sample is taken while the program runs, not after it.
func TestSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := startSamples()
		time.Sleep(2 * sampleInterval)
		if samples, err := end(); err != nil || len(samples) != 2 || slices.Min(samples) <= 0 {
			t.Errorf("samples = %v, %v, want two of more than 0", samples, err)
		}
		if samples, err := startSamples()(); err != nil || len(samples) != 0 {
			t.Errorf("samples of no time = %v, %v, want none", samples, err)
		}
	})
}

func TestInvalidUse(t *testing.T) {
	t.Setenv("TESTCPU_LOG", "")
	for name, args := range map[string][]string{"no log": {"true"}, "no program": {"-log=x"}, "unknown flag": {"-x"}} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if code, err := run(args, &out, &out); err == nil || code != 2 || !strings.Contains(out.String(), "usage:") {
				t.Errorf("run() = %d, %v, output %q, want the usage", code, err, &out)
			}
		})
	}
	if _, err := run([]string{"-log=" + filepath.Join(t.TempDir(), "log"), "/nowhere"}, nil, nil); err == nil {
		t.Error("run() of no program has no error")
	}
}

func TestSummary(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	var out bytes.Buffer
	if code, err := run([]string{"-summary=" + log}, &out, &out); code != 0 || err != nil || out.String() != "CPU time: no test ran, all results are cached\n" {
		t.Errorf("run() = %d, %v, output %q", code, err, &out)
	}
	for _, e := range []entry{
		{"a", time.Second, 1}, {"b", 16 * time.Second, 1.5}, {"b", 5 * time.Second, 2}, {"c", 61 * time.Second, 2}, {"d", 3 * time.Second, 1},
		{"e", 12 * time.Second, 2}, {"f", 500 * time.Millisecond, 1},
	} {
		if err := e.append(log); err != nil {
			t.Fatal(err)
		}
	}
	out.Reset()
	want := `CPU time: 98.5 s in 6 packages
    61.0 s  c, over 3 times the budget of 10s: failed (slowness 2.0)
    21.0 s  b, over the budget of 10s (slowness 2.0)
    12.0 s  e
     3.0 s  d
     1.0 s  a
`
	if code, err := run([]string{"-summary=" + log}, &out, &out); code != 0 || err != nil || out.String() != want {
		t.Errorf("run() = %d, %v, output\n%s\nwant\n%s", code, err, &out, want)
	}
	for _, line := range []string{"much test", "1 test", "1 0 test", "1 much test", "much 1 test"} {
		if err := os.WriteFile(log, []byte(line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := run([]string{"-summary=" + log}, &out, &out); err == nil || !strings.Contains(err.Error(), fmt.Sprintf(`invalid line "%s\n"`, line)) {
			t.Errorf("run() error = %v, want one about line %q", err, line)
		}
	}
}

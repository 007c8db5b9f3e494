package wire

import (
	"errors"
	"os"
	"strconv"
	"strings"
)

// RecordOf returns what tells a process from a later one with the same PID: its PID, and when it was started, in ticks since the
// machine was (proc_pid_stat(5), field 22).
func RecordOf(pid int) (string, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", err
	}
	const start = 22 - 3 // the third field is the first behind the name, which may have blanks
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) <= start {
		return "", errors.New("read /proc/PID/stat: it is cut")
	}
	return strconv.Itoa(pid) + " " + fields[start], nil
}

// PIDOf returns the PID of a record, 0 if it is none.
func PIDOf(record string) int {
	text, _, _ := strings.Cut(record, " ")
	pid, err := strconv.Atoi(text)
	if err != nil || pid < 1 {
		return 0
	}
	return pid
}

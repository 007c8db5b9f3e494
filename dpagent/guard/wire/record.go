package wire

import (
	"errors"
	"os"
	"strconv"
	"strings"
)

// RecordOf returns what distinguishes a process from a later one with the same PID: its PID, and its start time in
// clock ticks since the machine booted (proc_pid_stat(5), field 22).
func RecordOf(pid int) (string, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", err
	}
	const start = 22 - 3 // parsing starts at the third field, after the name, which may contain spaces
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) <= start {
		return "", errors.New("read /proc/PID/stat: truncated")
	}
	return strconv.Itoa(pid) + " " + fields[start], nil
}

// PIDOf returns the PID of a record, or 0 if the record is invalid.
func PIDOf(record string) int {
	text, _, _ := strings.Cut(record, " ")
	pid, err := strconv.Atoi(text)
	if err != nil || pid < 1 {
		return 0
	}
	return pid
}

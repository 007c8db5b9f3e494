package main

import (
	"os"
	"path/filepath"
	"syscall"
)

// maxTries is how many failed starts of the helper may delay a container.
const maxTries = 5

// firstTries counts a failed start, and reports whether another one may follow. If it cannot write the file in which it
// counts, it returns false: a container must not wait for its helper forever.
func firstTries(directory string) bool {
	const flags = os.O_CREATE | os.O_APPEND | os.O_WRONLY | syscall.O_NOFOLLOW | syscall.O_NONBLOCK
	file, err := os.OpenFile(filepath.Join(directory, "tries"), flags, 0o600)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }() // its size is the count
	if _, err := file.WriteString("."); err != nil {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Size() <= maxTries
}

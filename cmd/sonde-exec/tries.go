package main

import (
	"os"
	"path/filepath"
	"syscall"
)

// maxTries is how many failures of the start delay a container.
const maxTries = 5

// firstTries counts a failed start, and reports whether another one may follow. Without a file to count in, it returns
// false: a container must not wait for its helper for good.
func firstTries(directory string) bool {
	const flags = os.O_CREATE | os.O_APPEND | os.O_WRONLY | syscall.O_NOFOLLOW | syscall.O_NONBLOCK
	file, err := os.OpenFile(filepath.Join(directory, "tries"), flags, 0o600)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }() // the number of bytes is in the file
	if _, err := file.WriteString("."); err != nil {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Size() <= maxTries
}

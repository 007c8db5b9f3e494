package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// kubeletSysctls are the machine-wide sysctls that a kubelet sets.
// Source: kubernetes pkg/kubelet/cm/container_manager_linux.go (setupKernelTunables).
var kubeletSysctls = []string{
	"/proc/sys/vm/overcommit_memory", "/proc/sys/vm/panic_on_oom",
	"/proc/sys/kernel/panic", "/proc/sys/kernel/panic_on_oops",
	"/proc/sys/kernel/keys/root_maxkeys", "/proc/sys/kernel/keys/root_maxbytes",
}

// SaveSysctls saves the values of these sysctls to a file, unless the file exists.
func SaveSysctls(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	values := map[string]string{}
	for _, name := range kubeletSysctls {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		values[name] = string(text)
	}
	text, err := json.MarshalIndent(values, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil { // atomically: a killed process must not leave an incomplete file
		return err
	}
	return os.Rename(path+".new", path)
}

// RestoreSysctls restores the saved values. Without the file it does nothing.
func RestoreSysctls(path string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	values := map[string]string{}
	if err := json.Unmarshal(text, &values); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	var faults []error
	for name, value := range values {
		faults = append(faults, os.WriteFile(name, []byte(value), 0))
	}
	return errors.Join(faults...)
}

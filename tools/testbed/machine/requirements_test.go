package machine

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fitting returns a machine that meets all requirements.
func fitting(t *testing.T) probe {
	t.Helper()
	directory := t.TempDir()
	for _, plugin := range plugins {
		if err := os.WriteFile(filepath.Join(directory, plugin), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return probe{
		lookPath:    func(program string) (string, error) { return "/usr/sbin/" + program, nil },
		pluginDirs:  []string{t.TempDir(), directory},
		filesystems: "nodev\tproc\n\text4\nnodev\toverlay\n",
		controllers: []string{"cpu", "cpuset", "memory", "pids"},
	}
}

func TestRequirements(t *testing.T) {
	p := fitting(t)
	got, err := p.requirements()
	if want := (Paths{Runc: "/usr/sbin/runc", Plugins: p.pluginDirs[1]}); got != want || err != nil {
		t.Errorf("requirements() = %v, %v, want %v", got, err, want)
	}
}

func TestRequirementsMissing(t *testing.T) {
	tests := map[string]struct {
		change func(*probe)
		want   []string
	}{
		"not root": {func(p *probe) { p.uid = 1000 }, []string{"user 1000 is not root"}},
		"a program": {
			func(p *probe) { p.lookPath = without(p.lookPath, "nft") },
			[]string{"nft is missing (package nftables)", "apt-get install nftables"},
		},
		"no plugins": {
			func(p *probe) { p.pluginDirs = p.pluginDirs[:1] },
			[]string{"CNI plugins ptp, host-local, loopback, portmap, tuning", "apt-get install containernetworking-plugins"},
		},
		"no overlay":    {func(p *probe) { p.filesystems = "nodev\tproc\n\text4\n" }, []string{"modprobe overlay"}},
		"on an overlay": {func(p *probe) { p.overlay = true }, []string{"choose another with --state"}},
		"no IPv6":       {func(p *probe) { p.noIPv6 = true }, []string{"choose --ip-family=ipv4"}},
		"confined":      {func(p *probe) { p.confined = errors.New("not permitted") }, []string{"without privileges", "not permitted"}},
		"no controller": {func(p *probe) { p.controllers = []string{"cpu", "memory"} }, []string{"cgroup controller pids is missing"}},
		"all at once, each package once": {
			func(p *probe) {
				p.uid, p.pluginDirs = 1000, nil
				p.lookPath = without(p.lookPath, "runc", "ip", "nsenter", "unshare")
			},
			[]string{
				"user 1000 is not root", "runc is missing (package runc)", "ip is missing (package iproute2)",
				"nsenter is missing (package util-linux)", "unshare is missing (package util-linux)",
				"apt-get install containernetworking-plugins iproute2 runc util-linux",
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := fitting(t)
			tc.change(&p)
			_, err := p.requirements()
			if err == nil {
				t.Fatal("requirements() error = nil")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("requirements() error = %q, want one with %q", err, want)
				}
			}
		})
	}
}

// without makes a lookup fail for some programs.
func without(lookPath func(string) (string, error), programs ...string) func(string) (string, error) {
	return func(program string) (string, error) {
		if slices.Contains(programs, program) {
			return "", errors.New("not found")
		}
		return lookPath(program)
	}
}

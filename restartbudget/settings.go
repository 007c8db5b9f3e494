package restartbudget

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Mode says what becomes of decisions.
type Mode string

// Modes.
const (
	// Enforce has agents follow the decisions. It is the default.
	Enforce Mode = "enforce"
	// DryRun decides as Enforce does, reservations included, but each decision says that it is not to be followed.
	DryRun Mode = "dryRun"
	// Off leaves all to the kubelet, of suspended pods too.
	Off Mode = "off"
)

// Settings of an operator. They may change between two decisions.
type Settings struct {
	// Mode, default Enforce.
	Mode Mode
	// PerMinute is how many restarts are granted in any minute. Default 0: no limit. Those that were refunded do not count.
	PerMinute int
	// PerNodePerMinute is how many of them on one node. Default 0: no limit.
	PerNodePerMinute int
	// Blacklist says what is never restarted.
	Blacklist Blacklist
	Breaker   BreakerLimits
}

// Blacklist names what is never restarted.
type Blacklist struct {
	// Namespaces by name.
	Namespaces []string
	// Workloads as Kind/namespace/name.
	Workloads []string
	// Images as pods' specs have them: exactly, or up to the tag or the digest. "redis" is redis, redis:7 and redis@sha256:…, but not
	// redis-exporter nor docker.io/library/redis.
	Images []string
}

// BreakerLimits say when the breaker is open: both are reached.
type BreakerLimits struct {
	// Workloads of which containers are held. Default 3.
	Workloads int
	// Percent of all guarded containers that are held. Default 30; 1 to 100.
	Percent int
}

func (b BreakerLimits) withDefaults() BreakerLimits {
	if b.Workloads == 0 {
		b.Workloads = 3
	}
	if b.Percent == 0 {
		b.Percent = 30
	}
	return b
}

// Validate returns all that is wrong.
func (s Settings) Validate() error {
	var all []error
	complain := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if !slices.Contains([]Mode{"", Enforce, DryRun, Off}, s.Mode) {
		complain("mode is %q, want %s, %s or %s", s.Mode, Enforce, DryRun, Off)
	}
	if s.PerMinute < 0 {
		complain("perMinute is %d, want 0 (no limit) or more", s.PerMinute)
	}
	if s.PerNodePerMinute < 0 {
		complain("perNodePerMinute is %d, want 0 (no limit) or more", s.PerNodePerMinute)
	}
	for _, w := range s.Blacklist.Workloads {
		if _, ok := ParseWorkloadID(w); !ok {
			complain("blacklist: workload is %q, want Kind/namespace/name", w)
		}
	}
	if slices.Contains(s.Blacklist.Namespaces, "") || slices.Contains(s.Blacklist.Images, "") {
		complain("blacklist: a namespace or image is empty")
	}
	if s.Breaker.Workloads < 0 {
		complain("breaker: workloads is %d, want 1 or more", s.Breaker.Workloads)
	}
	if s.Breaker.Percent < 0 || s.Breaker.Percent > 100 {
		complain("breaker: percent is %d, want 1 to 100", s.Breaker.Percent)
	}
	return errors.Join(all...)
}

// match returns what names the container, "" if nothing does.
func (b *Blacklist) match(workload WorkloadID, image string) string {
	switch {
	case slices.Contains(b.Namespaces, workload.Namespace):
		return "namespace " + workload.Namespace
	case len(b.Workloads) > 0 && slices.Contains(b.Workloads, workload.String()):
		return "workload " + workload.String()
	case slices.ContainsFunc(b.Images, func(entry string) bool { return matchImage(entry, image) }):
		return "image " + image
	}
	return ""
}

// matchImage reports whether an image is entry with any tag or digest, or none. What follows a registry's port is no tag.
func matchImage(entry, image string) bool {
	rest, ok := strings.CutPrefix(image, entry)
	return ok && (rest == "" || rest[0] == '@' || rest[0] == ':' && !strings.Contains(rest, "/"))
}

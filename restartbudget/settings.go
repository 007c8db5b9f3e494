package restartbudget

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Mode is the effect of decisions.
type Mode string

// Modes.
const (
	// Enforce makes agents follow the decisions. It is the default.
	Enforce Mode = "enforce"
	// DryRun decides as Enforce does, including reservations, but the decisions have no effect.
	DryRun Mode = "dryRun"
	// Off leaves all restarts to the kubelet, including suspended pods.
	Off Mode = "off"
)

// Modes returns all modes.
func Modes() []Mode { return []Mode{Enforce, DryRun, Off} }

// Defaults of BreakerLimits.
const (
	DefaultBreakerWorkloads = 3
	DefaultBreakerPercent   = 30
)

// Allowed values, for errors.
const (
	AllowedBreakerWorkloads = "must be 1 or more"
	AllowedBreakerPercent   = "must be from 1 to 100"
	allowedLimit            = "must be 0, for no limit, or more"
)

// Settings of an operator. They may change between two decisions.
type Settings struct {
	// Mode, default Enforce.
	Mode Mode
	// PerMinute is the maximum of restarts per minute. Default 0: no limit. Refunded grants do not count.
	PerMinute int
	// PerNodePerMinute is the maximum of restarts per minute on one node. Default 0: no limit.
	PerNodePerMinute int
	// Blacklist excludes containers from restarts.
	Blacklist Blacklist
	Breaker   BreakerLimits
}

// Blacklist names workloads and images that never restart.
type Blacklist struct {
	// Namespaces by name.
	Namespaces []string
	// Workloads as Kind/namespace/name.
	Workloads []string
	// Images as in the spec of a pod: exactly, or without the tag or digest. "redis" matches redis, redis:7 and
	// redis@sha256:…, but not redis-exporter or docker.io/library/redis.
	Images []string
}

// BreakerLimits open the breaker when both limits are reached.
type BreakerLimits struct {
	// Workloads is the number of workloads with held containers. Default DefaultBreakerWorkloads.
	Workloads int
	// Percent is the percentage of all guarded containers that are held. Default DefaultBreakerPercent; 1 to 100.
	Percent int
}

func (b BreakerLimits) withDefaults() BreakerLimits {
	return BreakerLimits{cmp.Or(b.Workloads, DefaultBreakerWorkloads), cmp.Or(b.Percent, DefaultBreakerPercent)}
}

// SettingError is one violation of Settings.
type SettingError struct {
	// Setting is the field of Settings, such as Breaker.Percent.
	Setting string
	// Value is the operator's value, Allowed describes the allowed values.
	Value, Allowed string
}

// Error implements error.
func (e *SettingError) Error() string {
	return fmt.Sprintf("%s: %q: %s", e.Setting, e.Value, e.Allowed)
}

// Validate returns all violations, joined. Each is a *SettingError.
func (s Settings) Validate() error {
	var all []error
	refuse := func(setting, value, allowed string) { all = append(all, &SettingError{setting, value, allowed}) }
	if s.Mode != "" && !slices.Contains(Modes(), s.Mode) {
		refuse("Mode", string(s.Mode), fmt.Sprintf("must be %s, %s or %s", Enforce, DryRun, Off))
	}
	if s.PerMinute < 0 {
		refuse("PerMinute", strconv.Itoa(s.PerMinute), allowedLimit)
	}
	if s.PerNodePerMinute < 0 {
		refuse("PerNodePerMinute", strconv.Itoa(s.PerNodePerMinute), allowedLimit)
	}
	if n := s.Breaker.Workloads; n < 0 {
		refuse("Breaker.Workloads", strconv.Itoa(n), AllowedBreakerWorkloads)
	}
	if n := s.Breaker.Percent; n < 0 || n > 100 {
		refuse("Breaker.Percent", strconv.Itoa(n), AllowedBreakerPercent)
	}
	s.Blacklist.validate(refuse)
	return errors.Join(all...)
}

// validate rejects entries that cannot match anything, so that their author learns that they have no effect.
func (b *Blacklist) validate(refuse func(setting, value, allowed string)) {
	for _, n := range b.Namespaces {
		if n == "" || strings.ContainsAny(n, "/ ") {
			refuse("Blacklist.Namespaces", n, "must be names of namespaces")
		}
	}
	for _, w := range b.Workloads {
		if _, ok := ParseWorkloadID(w); !ok {
			refuse("Blacklist.Workloads", w, "must be Kind/namespace/name, such as Deployment/shop/web")
		}
	}
	for _, i := range b.Images {
		if i == "" || strings.Contains(i, " ") {
			refuse("Blacklist.Images", i, "must be images as pods have them, with or without tag")
		}
	}
}

// Equal reports whether two Settings are the same, in the same order.
func (s Settings) Equal(o Settings) bool {
	return s.Mode == o.Mode && s.PerMinute == o.PerMinute && s.PerNodePerMinute == o.PerNodePerMinute &&
		s.Breaker == o.Breaker &&
		slices.Equal(s.Blacklist.Namespaces, o.Blacklist.Namespaces) &&
		slices.Equal(s.Blacklist.Workloads, o.Blacklist.Workloads) &&
		slices.Equal(s.Blacklist.Images, o.Blacklist.Images)
}

// match returns the entry that matches the container, "" without a match.
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

// matchImage reports whether image equals entry, or equals entry with any tag or digest. A colon before a slash
// precedes a registry's port.
func matchImage(entry, image string) bool {
	rest, ok := strings.CutPrefix(image, entry)
	return ok && (rest == "" || rest[0] == '@' || rest[0] == ':' && !strings.Contains(rest, "/"))
}

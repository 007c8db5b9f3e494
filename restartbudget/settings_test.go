package restartbudget

import (
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	tests := map[string]struct {
		settings Settings
		want     string // "" for none
	}{
		"zero value": {Settings{}, ""},
		"all set": {Settings{
			Mode: DryRun, PerMinute: 10, PerNodePerMinute: 1, Breaker: BreakerLimits{5, 100},
			Blacklist: Blacklist{[]string{"kube-system"}, []string{"Deployment/shop/web"}, []string{"redis"}},
		}, ""},
		"mode":               {Settings{Mode: "On"}, `mode is "On"`},
		"perMinute":          {Settings{PerMinute: -1}, "perMinute is -1"},
		"perNodePerMinute":   {Settings{PerNodePerMinute: -1}, "perNodePerMinute is -1"},
		"workload":           {Settings{Blacklist: Blacklist{Workloads: []string{"shop/web"}}}, `workload is "shop/web"`},
		"workload half":      {Settings{Blacklist: Blacklist{Workloads: []string{"Deployment/shop/"}}}, `workload is "Deployment/shop/"`},
		"empty image":        {Settings{Blacklist: Blacklist{Images: []string{""}}}, "image is empty"},
		"workloads held":     {Settings{Breaker: BreakerLimits{Workloads: -1}}, "workloads is -1"},
		"percent above 100":  {Settings{Breaker: BreakerLimits{Percent: 101}}, "percent is 101"},
		"percent below zero": {Settings{Breaker: BreakerLimits{Percent: -1}}, "percent is -1"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := tc.settings.Validate()
			if tc.want == "" && err != nil {
				t.Errorf("Validate() = %v, want none", err)
			}
			if tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("Validate() = %v, want %s", err, tc.want)
			}
		})
	}
}

func TestBlacklist(t *testing.T) {
	tests := map[string]struct {
		blacklist Blacklist
		image     string
		want      string
	}{
		"nothing":                         {Blacklist{}, "redis", ""},
		"namespace":                       {Blacklist{Namespaces: []string{"other", "shop"}}, "redis", "namespace shop"},
		"part of a namespace":             {Blacklist{Namespaces: []string{"sho"}}, "redis", ""},
		"workload":                        {Blacklist{Workloads: []string{"Deployment/shop/web"}}, "redis", "workload Deployment/shop/web"},
		"workload of another kind":        {Blacklist{Workloads: []string{"StatefulSet/shop/web"}}, "redis", ""},
		"image as it is":                  {Blacklist{Images: []string{"redis:7"}}, "redis:7", "image redis:7"},
		"image with any tag":              {Blacklist{Images: []string{"redis"}}, "redis:7", "image redis:7"},
		"image with any digest":           {Blacklist{Images: []string{"redis"}}, "redis@sha256:ab", "image redis@sha256:ab"},
		"tag with any digest":             {Blacklist{Images: []string{"redis:7"}}, "redis:7@sha256:ab", "image redis:7@sha256:ab"},
		"longer tag":                      {Blacklist{Images: []string{"redis:7"}}, "redis:7.2", ""},
		"longer name":                     {Blacklist{Images: []string{"redis"}}, "redis-exporter:1", ""},
		"image of a registry":             {Blacklist{Images: []string{"redis"}}, "docker.io/library/redis:7", ""},
		"registry is not its image":       {Blacklist{Images: []string{"registry"}}, "registry:5000/shop/app", ""},
		"image of a registry with port":   {Blacklist{Images: []string{"registry:5000/shop/app"}}, "registry:5000/shop/app:1", "image registry:5000/shop/app:1"},
		"the namespace is compared first": {Blacklist{Namespaces: []string{"shop"}, Images: []string{"redis"}}, "redis", "namespace shop"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.blacklist.match(deployment("web"), tc.image); got != tc.want {
				t.Errorf("match() = %q, want %q", got, tc.want)
			}
		})
	}
}

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
		"mode":               {Settings{Mode: "On"}, `Mode: "On": must be enforce, dryRun or off`},
		"perMinute":          {Settings{PerMinute: -1}, `PerMinute: "-1": must be 0, for no limit, or more`},
		"perNodePerMinute":   {Settings{PerNodePerMinute: -1}, `PerNodePerMinute: "-1": must be 0, for no limit, or more`},
		"workload":           {Settings{Blacklist: Blacklist{Workloads: []string{"shop/web"}}}, `Blacklist.Workloads: "shop/web": must be Kind/namespace/name`},
		"workload half":      {Settings{Blacklist: Blacklist{Workloads: []string{"Deployment/shop/"}}}, `Blacklist.Workloads: "Deployment/shop/": must be`},
		"empty image":        {Settings{Blacklist: Blacklist{Images: []string{""}}}, `Blacklist.Images: "": must be images`},
		"a space in images":  {Settings{Blacklist: Blacklist{Images: []string{"redis, nginx"}}}, `Blacklist.Images: "redis, nginx": must be images`},
		"empty namespace":    {Settings{Blacklist: Blacklist{Namespaces: []string{""}}}, `Blacklist.Namespaces: "": must be names`},
		"no namespace":       {Settings{Blacklist: Blacklist{Namespaces: []string{"shop/web"}}}, `Blacklist.Namespaces: "shop/web": must be names`},
		"workloads held":     {Settings{Breaker: BreakerLimits{Workloads: -1}}, `Breaker.Workloads: "-1": must be 1 or more`},
		"percent above 100":  {Settings{Breaker: BreakerLimits{Percent: 101}}, `Breaker.Percent: "101": must be from 1 to 100`},
		"percent below zero": {Settings{Breaker: BreakerLimits{Percent: -1}}, `Breaker.Percent: "-1": must be from 1 to 100`},
		"two":                {Settings{Mode: "On", PerMinute: -1}, "must be enforce, dryRun or off\nPerMinute: "},
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

func TestEqual(t *testing.T) {
	all := func() Settings {
		return Settings{DryRun, 10, 1, Blacklist{[]string{"kube-system"}, []string{"Deployment/shop/web"}, []string{"redis"}}, BreakerLimits{5, 100}}
	}
	if !all().Equal(all()) || !(Settings{}).Equal(Settings{Blacklist: Blacklist{Images: []string{}}}) {
		t.Error("settings differ from themselves")
	}
	for name, change := range map[string]func(*Settings){
		"mode":              func(s *Settings) { s.Mode = Off },
		"perMinute":         func(s *Settings) { s.PerMinute++ },
		"perNodePerMinute":  func(s *Settings) { s.PerNodePerMinute++ },
		"namespaces":        func(s *Settings) { s.Blacklist.Namespaces = nil },
		"workloads":         func(s *Settings) { s.Blacklist.Workloads[0] = "Deployment/shop/db" },
		"images":            func(s *Settings) { s.Blacklist.Images = append(s.Blacklist.Images, "nginx") },
		"breaker workloads": func(s *Settings) { s.Breaker.Workloads++ },
		"breaker percent":   func(s *Settings) { s.Breaker.Percent-- },
	} {
		changed := all()
		if change(&changed); changed.Equal(all()) {
			t.Errorf("another %s makes no difference", name)
		}
	}
}

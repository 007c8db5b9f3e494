package controlplane

import (
	"errors"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/restartbudget"
)

func TestValidate(t *testing.T) {
	tests := map[string]struct {
		options Options
		want    []string // fields
	}{
		"least":                                {Options{Store: "dir:/mesh", StateDir: "/state"}, nil},
		"nothing":                              {Options{}, []string{"Store", "StateDir"}},
		"no directory":                         {Options{Store: "dir:", StateDir: "/state"}, []string{"Store"}},
		"unknown store":                        {Options{Store: "etcd:/x", StateDir: "/state"}, []string{"Store"}},
		"name, not IP":                         {Options{Store: "dir:/mesh", StateDir: "/state", BindAddress: "localhost"}, []string{"BindAddress"}},
		"connections too short":                {Options{Store: "dir:/mesh", StateDir: "/state", ConnectionAge: time.Second}, []string{"ConnectionAge"}},
		"connections below 0":                  {Options{Store: "dir:/mesh", StateDir: "/state", ConnectionAge: -time.Hour}, []string{"ConnectionAge"}},
		"connections too long":                 {Options{Store: "dir:/mesh", StateDir: "/state", ConnectionAge: MaxConnectionAge + 1}, []string{"ConnectionAge"}},
		"delay too long":                       {Options{Store: "dir:/mesh", StateDir: "/state", ShutdownDelay: time.Minute}, []string{"ShutdownDelay"}},
		"health anywhere":                      {Options{Store: "dir:/mesh", StateDir: "/state", HealthAddress: "*:0"}, nil},
		"health on IPv6":                       {Options{Store: "dir:/mesh", StateDir: "/state", HealthAddress: "[::1]:80"}, nil},
		"health, no port":                      {Options{Store: "dir:/mesh", StateDir: "/state", HealthAddress: "127.0.0.1"}, []string{"HealthAddress"}},
		"health, port":                         {Options{Store: "dir:/mesh", StateDir: "/state", HealthAddress: ":65536"}, []string{"HealthAddress"}},
		"health, name":                         {Options{Store: "dir:/mesh", StateDir: "/state", HealthAddress: "web:80"}, []string{"HealthAddress"}},
		"health, taken":                        {Options{Store: "dir:/mesh", StateDir: "/state", HealthAddress: ":80", AdminPort: 80}, []string{"HealthAddress"}},
		"health, a port that is of Kubernetes": {Options{Store: "dir:/mesh", StateDir: "/state", HealthAddress: ":80", WebhookPort: 80}, nil},
		"guarded liveness":                     {Options{Store: "kubernetes", Kubernetes: Kubernetes{GuardedLiveness: restartbudget.Settings{Breaker: restartbudget.BreakerLimits{Percent: 101}}}}, []string{"Kubernetes.GuardedLiveness.Breaker.Percent"}},
		"no domain name":                       {Options{Store: "dir:/mesh", StateDir: "/state", TrustDomain: "Ex ample"}, []string{"TrustDomain"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := tc.options.Validate()
			var got []error
			if joined, ok := err.(interface{ Unwrap() []error }); ok {
				got = joined.Unwrap()
			}
			if len(got) != len(tc.want) {
				t.Fatalf("Validate() = %v, want errors for %v", err, tc.want)
			}
			for i, want := range tc.want {
				if field, ok := errors.AsType[*mesh.FieldError](got[i]); !ok || field.Field != want {
					t.Errorf("error %q, want one for %s", got[i], want)
				}
			}
		})
	}
}

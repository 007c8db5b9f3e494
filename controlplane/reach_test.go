package controlplane

import (
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestAnswered(t *testing.T) {
	secrets := schema.GroupResource{Resource: "secrets"}
	tests := map[string]struct {
		err  error
		want bool
	}{
		"no error":         {nil, true},
		"not found":        {apierrors.NewNotFound(secrets, "x"), true},
		"forbidden":        {fmt.Errorf("list: %w", apierrors.NewForbidden(secrets, "x", errors.New("no role"))), true},
		"unauthorized":     {apierrors.NewUnauthorized("x"), true},
		"a closed port":    {errors.New("connection refused"), false},
		"etcd is away":     {apierrors.NewInternalError(errors.New("etcd")), false},
		"it starts":        {apierrors.NewServiceUnavailable("starting"), false},
		"too much at once": {apierrors.NewTooManyRequests("later", 1), false},
		"a timeout of it":  {apierrors.NewTimeoutError("slow", 1), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := answered(tc.err); got != tc.want {
				t.Errorf("answered(%v) = %t", tc.err, got)
			}
		})
	}
}

package mesh_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestRenameFields(t *testing.T) {
	t.Parallel()
	port := &mesh.FieldError{Field: "Port", Value: "x", Allowed: "must be a port"}
	path := &mesh.FieldError{Field: "Path", Value: "/x", Err: fs.ErrNotExist}
	tests := map[string]struct {
		err  error
		want string
	}{
		"none":           {nil, ""},
		"a field":        {port, `--the-port: "x": must be a port`},
		"wrapped":        {fmt.Errorf("start: %w", port), `--the-port: "x": must be a port`},
		"with a cause":   {path, `--path: "/x": file does not exist`},
		"no flag":        {&mesh.FieldError{Field: "Other", Allowed: "must be set"}, "Other: must be set"},
		"no field":       {errors.New("too bad"), "too bad"},
		"joined, nested": {errors.Join(errors.Join(port, errors.New("too bad")), path), "--the-port: \"x\": must be a port\ntoo bad\n--path: \"/x\": file does not exist"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := mesh.RenameFields(tc.err, map[string]string{"Port": "--the-port", "Path": "--path"})
			if got := fmt.Sprint(err); tc.err != nil && got != tc.want || tc.err == nil && err != nil {
				t.Errorf("RenameFields() = %q, want %q", got, tc.want)
			}
		})
	}
	if err := mesh.RenameFields(path, map[string]string{"Path": "--path"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("RenameFields() = %v, which has lost its cause", err)
	}
}

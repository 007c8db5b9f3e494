package secret_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/identity/secret"
	"github.com/sonde-mesh/sonde/internal/testing/secrettest"
)

// A secret that cannot be read when it changes is loaded later without another change. The same error is reported once.
func TestFollowTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		var storage secrettest.Memory
		errs := []string{"away", "away", "slow"}
		var taken, told []string
		take := func(name string) error {
			if len(errs) > 0 && name == "ca" {
				err := errors.New(errs[0])
				errs = errs[1:]
				return err
			}
			taken = append(taken, name)
			return nil
		}
		go func() {
			ended <- secret.Follow(ctx, &storage, take, func(name string, err error) { told = append(told, name+": "+err.Error()) })
		}()
		synctest.Wait()
		for _, name := range []string{"ca", "token"} {
			if _, err := storage.Create(ctx, name, []byte("1")); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		time.Sleep(5 * time.Minute)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Follow() error = %v", err)
		}
		if want := []string{"token", "ca"}; !slices.Equal(taken, want) {
			t.Errorf("taken: %q, want %q", taken, want)
		}
		if want := []string{"ca: away", "ca: slow"}; !slices.Equal(told, want) {
			t.Errorf("told: %q, want %q", told, want)
		}
	})
}

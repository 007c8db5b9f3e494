package wait

import "testing"

func For(testing.TB, string, func() bool) {}

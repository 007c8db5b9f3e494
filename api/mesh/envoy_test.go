package mesh

import "testing"

func TestSupportsEnvoy(t *testing.T) {
	for version, want := range map[string]bool{
		"1.38.0": true, "1.39.3": true, "1.40.0": true, "1.40.1-dev": true, "1.40": true,
		"1.37.9": false, "1.41.0-dev": false, "1.4": false, "1.400.0": false, "2.40.0": false, "11.40.0": false, "1.x": false, "": false,
	} {
		if got := SupportsEnvoy(version); got != want {
			t.Errorf("SupportsEnvoy(%q) = %t, want %t", version, got, want)
		}
	}
	if got, want := SupportedEnvoys(), "1.38 to 1.40"; got != want {
		t.Errorf("SupportedEnvoys() = %q, want %q", got, want)
	}
}

package partition

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// epoch is the start of each test.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const silence = 30 * time.Second

func settings() Settings {
	return Settings{Silence: silence, Enter: DefaultEnter, Leave: LeaveFor(DefaultEnter), Calm: DefaultCalm}
}

// members parses a text. Each letter of a word is a member that is heard (h), silent (s) or unheard (u); the zone
// follows after a colon, as in "hhs:a hh:b".
func members(text string, at time.Time) []Member {
	var all []Member
	for word := range strings.FieldsSeq(text) {
		letters, zone, _ := strings.Cut(word, ":")
		for i, letter := range letters {
			m := Member{Name: fmt.Sprintf("%s-%d", zone, i), Zone: zone}
			switch letter {
			case 'h':
				m.Heard = at.Add(-silence + time.Nanosecond)
			case 's':
				m.Heard = at.Add(-silence)
			}
			all = append(all, m)
		}
	}
	return all
}

// readings judges readings one after the other, ten seconds apart, and returns the last state. A text that begins with
// ! is a failed reading, and names its cause.
func readings(state State, texts ...string) State {
	for i, text := range texts {
		r := Reading{At: epoch.Add(time.Duration(i) * 10 * time.Second)}
		if failed, ok := strings.CutPrefix(text, "!"); ok {
			r.Failed = Cause(failed)
		} else {
			r.Members = members(text, r.At)
		}
		state = Judge(state, r, settings())
	}
	return state
}

func TestJudge(t *testing.T) {
	tests := map[string]struct {
		before   State
		readings []string
		want     string // verdict about all members
		zones    map[string]string
	}{
		"no member":                           {readings: []string{""}, want: "seen"},
		"all heard":                           {readings: []string{"hhhhhhhhhh"}, want: "seen"},
		"half silent":                         {readings: []string{"hhhhhsssss"}, want: "seen"},
		"at the fraction":                     {readings: []string{"hhhhssssss"}, want: "lost all"},
		"all silent":                          {readings: []string{"ssssssssss"}, want: "lost all"},
		"one alone":                           {readings: []string{"s"}, want: "seen"},
		"two":                                 {readings: []string{"ss"}, want: "lost all"},
		"one of two":                          {readings: []string{"hs"}, want: "seen"},
		"shrinks to one":                      {readings: []string{"ssss", "s"}, want: "seen"},
		"shrinks to none":                     {readings: []string{"ssss", ""}, want: "seen"},
		"shrinks to one, and grows":           {readings: []string{"ssss", "s", "hs"}, want: "seen"},
		"below the fraction, not below leave": {readings: []string{"ssssssssss", "hhhhhsssss", "hhhhhsssss", "hhhhhsssss", "hhhhhsssss"}, want: "lost all"},
		"at leave":                            {readings: []string{"ssssssssss", "hhhhhhssss", "hhhhhhssss", "hhhhhhssss"}, want: "lost all"},
		"two calm readings":                   {readings: []string{"ssssssssss", "hhhhhhhhhh", "hhhhhhhhhh"}, want: "lost all"},
		"three calm readings":                 {readings: []string{"ssssssssss", "hhhhhhhhhh", "hhhhhhhsss", "hhhhhhhhhh"}, want: "seen"},
		"not in a row":                        {readings: []string{"ssssssssss", "hhhhhhhhhh", "hhhhhhhhhh", "ssssssssss", "hhhhhhhhhh"}, want: "lost all"},
		"a failed one between":                {readings: []string{"ssssssssss", "hhhhhhhhhh", "hhhhhhhhhh", "!throttled", "hhhhhhhhhh", "hhhhhhhhhh"}, want: "lost all"},
		"seen after a failed one between":     {readings: []string{"ssssssssss", "!throttled", "hhhhhhhhhh", "hhhhhhhhhh", "hhhhhhhhhh"}, want: "seen"},
		"API server away":                     {readings: []string{"hhhh", "!api-server-away"}, want: "unknown api-server-away"},
		"away from the start":                 {readings: []string{"!api-server-away"}, want: "unknown api-server-away"},
		"throttled while lost":                {readings: []string{"ssss", "!throttled"}, want: "unknown throttled"},
		"lost again after it":                 {readings: []string{"ssss", "!throttled", "sshh"}, want: "lost all"},
		"seen again after it":                 {readings: []string{"hhhh", "!throttled", "hhhh"}, want: "seen"},
		"no member heard yet":                 {readings: []string{"uuuu"}, want: "unknown unheard"},
		"enough heard":                        {readings: []string{"hhhhhuuuuu"}, want: "seen"},
		"too few heard to tell":               {readings: []string{"hhhhuuuuuu"}, want: "unknown unheard"},
		"silent and unheard":                  {readings: []string{"hhhhsssuuu"}, want: "unknown unheard"},
		"silent enough, whatever the others":  {readings: []string{"ssssssuuuu"}, want: "lost all"},
		"one alone that is unheard":           {readings: []string{"u"}, want: "seen"},
		"taken over, no member heard yet":     {before: lostWhole(), readings: []string{"uuuu", "uuuu", "uuuu", "uuuu"}, want: "lost all"},
		"taken over, some heard":              {before: lostWhole(), readings: []string{"huuu", "huuu", "huuu", "huuu"}, want: "lost all"},
		"taken over, and heard":               {before: lostWhole(), readings: []string{"uuuu", "hhhh", "hhhh", "hhhh"}, want: "seen"},
		"taken over, shrunk":                  {before: lostWhole(), readings: []string{"u"}, want: "seen"},
		"one zone of three":                   {readings: []string{"sss:a hhh:b hhh:c"}, want: "seen", zones: map[string]string{"a": "lost one-zone", "b": "seen", "c": "seen"}},
		"the large zone":                      {readings: []string{"ssssss:a hh:b"}, want: "lost one-zone", zones: map[string]string{"a": "lost one-zone", "b": "seen"}},
		"two zones of three":                  {readings: []string{"sss:a sss:b hhh:c"}, want: "lost all", zones: map[string]string{"a": "lost all", "b": "lost all", "c": "seen"}},
		"the only zone":                       {readings: []string{"sss:a"}, want: "lost all", zones: map[string]string{"a": "lost all"}},
		"a zone of one":                       {readings: []string{"s:a hhh:b"}, want: "seen", zones: map[string]string{"a": "seen", "b": "seen"}},
		"a zone that has gone":                {readings: []string{"sss:a hhh:b", "hhh:b"}, want: "seen", zones: map[string]string{"b": "seen"}},
		"failed, by zone":                     {readings: []string{"hhh:a hhh:b", "!throttled"}, want: "unknown throttled", zones: map[string]string{"a": "unknown throttled", "b": "unknown throttled"}},
		"members without a zone":              {readings: []string{"sss:a hh"}, want: "lost one-zone", zones: map[string]string{"a": "lost one-zone"}},
		"the cause stays while it ends":       {readings: []string{"ssssss:a hh:b", "hhhhhh:a hh:b"}, want: "lost one-zone", zones: map[string]string{"a": "lost one-zone", "b": "seen"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := readings(tc.before, tc.readings...)
			check := func(g Group, want string) {
				if said := strings.TrimSpace(string(got[g].Verdict) + " " + string(got[g].Cause)); said != want {
					t.Errorf("%s is %q, want %q", g, said, want)
				}
			}
			check(Whole, tc.want)
			for zone, want := range tc.zones {
				check(Group{Zone: zone}, want)
			}
			if len(got) != len(tc.zones)+1 && tc.before == nil {
				t.Errorf("%d groups in %v, want %d", len(got), got, len(tc.zones)+1)
			}
		})
	}
}

func lostWhole() State { return Restore(map[Group]time.Time{Whole: epoch.Add(-time.Hour)}) }

// Members that are heard once per Silence do not end a loss. If they are heard regularly, the loss ends after one
// Silence.
func TestQuiet(t *testing.T) {
	const every = 2 * time.Second
	tests := map[string]struct {
		quiet   time.Duration
		heard   time.Duration // interval at which members are heard, from the tenth second of a loss on
		failing time.Duration // when a reading fails; 0 for none
		want    []string
	}{
		"once in each expiry":            {silence, silence + every, 0, []string{"0s lost"}},
		"as before, without quiet":       {0, silence + every, 0, []string{"0s lost", "14s seen", "40s lost", "46s seen", "1m12s lost", "1m18s seen"}},
		"regularly":                      {silence, 10 * time.Second, 0, []string{"0s lost", "40s seen"}},
		"at the end of each expiry":      {silence, silence - every, 0, []string{"0s lost", "40s seen"}},
		"a reading that fails meanwhile": {silence, 10 * time.Second, 20 * time.Second, []string{"0s lost", "20s unknown", "22s lost", "52s seen"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := settings()
			s.Quiet = tc.quiet
			heard, state := epoch.Add(-silence), State(nil)
			var got []string
			last := Verdict("")
			for passed := time.Duration(0); passed < 90*time.Second; passed += every {
				r := Reading{At: epoch.Add(passed)}
				if late := passed - 10*time.Second; late >= 0 && late%tc.heard == 0 {
					heard = r.At
				}
				if tc.failing > 0 && passed == tc.failing {
					r.Failed = Throttled
				} else {
					r.Members = []Member{{Name: "a", Heard: heard}, {Name: "b", Heard: heard}}
				}
				state = Judge(state, r, s)
				if now := state[Whole].Verdict; now != last {
					got = append(got, fmt.Sprint(passed, " ", now))
					last = now
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("verdicts (-want +got):\n%s", diff)
			}
		})
	}
}

// The start of a loss does not change, however often it is judged, also after failed readings.
func TestSince(t *testing.T) {
	state := readings(nil, "ssss", "ssss", "ssss")
	if since := state[Whole].Since; !since.Equal(epoch) {
		t.Errorf("lost since %s, want %s", since, epoch)
	}
	if since := readings(lostWhole(), "uuuu")[Whole].Since; !since.Equal(epoch.Add(-time.Hour)) {
		t.Errorf("lost since %s, want what the reader before said", since)
	}
	state = readings(nil, "ssss", "!throttled")
	if s := state[Whole]; !s.Latched() || s.Members != 4 || s.Silent != 4 || !s.Since.Equal(epoch.Add(10*time.Second)) {
		t.Errorf("after a reading that failed: %+v, want the counts of the one before, and that it counts as lost", s)
	}
}

// Judge does not change its arguments.
func TestJudgeIsPure(t *testing.T) {
	before := readings(nil, "ssss:a hh:b")
	kept := fmt.Sprint(before)
	for _, text := range []string{"hhhh:a hh:b", "!throttled", "", "ss:c"} {
		readings(before, text)
	}
	if fmt.Sprint(before) != kept {
		t.Errorf("%v, was %s", before, kept)
	}
}

func TestSettings(t *testing.T) {
	if err := settings().Validate(); err != nil {
		t.Error(err)
	}
	tests := map[string]struct {
		change func(*Settings)
		want   string
	}{
		"no silence":        {func(s *Settings) { s.Silence = 0 }, "silence: 0s: must be more than 0"},
		"enter 0":           {func(s *Settings) { s.Enter = 0 }, "enter: 0: must be more than 0 and at most 1"},
		"enter 1.5":         {func(s *Settings) { s.Enter = 1.5 }, "enter: 1.5: must be more than 0 and at most 1"},
		"enter NaN":         {func(s *Settings) { s.Enter = math.NaN() }, "enter: NaN"},
		"leave above enter": {func(s *Settings) { s.Leave = 0.7 }, "leave: 0.7: must be more than 0 and at most enter, which is 0.6"},
		"leave 0":           {func(s *Settings) { s.Leave = 0 }, "leave: 0: must be more than 0"},
		"not calm":          {func(s *Settings) { s.Calm = 0 }, "calm: 0: must be at least 1"},
		"quiet before":      {func(s *Settings) { s.Quiet = -time.Second }, "quiet: -1s: must be at least 0s"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := settings()
			tc.change(&s)
			if err := s.Validate(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Validate() = %v, want %q", err, tc.want)
			}
		})
	}
}

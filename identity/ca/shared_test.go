package ca

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/identity/secret"
	"github.com/sonde-mesh/sonde/internal/testing/secrettest"
)

// plain is a state with a word in addition to the CAs.
type plain struct {
	Kept
	word string
}

type plainFile struct {
	SetFile
	Word string `json:"word"`
}

func (p *plain) With(set *Set) *plain    { return &plain{Kept{Set: set}, p.word} }
func (p *plain) Encode() ([]byte, error) { return json.Marshal(plainFile{p.File(), p.word}) }

func decodePlain(data []byte) (*plain, error) {
	var f plainFile
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, errors.New("not JSON")
	}
	set, err := f.Set()
	return &plain{Kept{Set: set}, f.Word}, err
}

// process has a Shared, and counts the states after the first one.
type process struct {
	*Shared[*plain]
	now  time.Time
	used int
}

func newProcess(storage secret.Shared) *process {
	p := &process{now: time.Unix(1_900_000_000, 0)}
	p.Shared = &Shared[*plain]{
		Storage: storage, Name: "ca.json", Decode: decodePlain, Now: func() time.Time { return p.now },
		Used: func(context.Context, *plain, *plain) { p.used++ },
	}
	return p
}

func (p *process) newCA() (*CA, error) { return New(&x509.Certificate{}, p.now, time.Hour) }

func (p *process) create() (*plain, error) {
	only, err := p.newCA()
	if err != nil {
		return nil, err
	}
	return &plain{Kept{Set: NewSet(only, p.now)}, "first"}, nil
}

func opened(t *testing.T, storage secret.Shared) *process {
	t.Helper()
	p := newProcess(storage)
	if _, err := p.Open(t.Context(), p.create); err != nil {
		t.Fatal(err)
	}
	return p
}

// say changes only the word.
func (p *process) say(ctx context.Context, word string) (bool, error) {
	return p.Change(ctx, func(now *plain) (*plain, error) {
		if now.word == word {
			return nil, nil
		}
		next := now.With(now.Set)
		next.word = word
		return next, nil
	})
}

func TestOpen(t *testing.T) {
	storage := &secrettest.Memory{}
	p := newProcess(storage)
	if _, err := p.Open(t.Context(), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open() without create = %v, want fs.ErrNotExist", err)
	}
	other := newProcess(storage)
	created, err := p.Open(t.Context(), func() (*plain, error) { // another process is faster
		if created, err := other.Open(t.Context(), other.create); err != nil || !created {
			t.Errorf("Open() = %v, %v, want that it has created it", created, err)
		}
		return p.create()
	})
	if err != nil || created || p.Current().ID() != other.Current().ID() {
		t.Errorf("Open() = %v, %v, with CAs %s, want the other process's, %s", created, err, p.Current().ID(), other.Current().ID())
	}
	storage.Fail = func(string) error { return errors.New("disk full") }
	storage.Put("ca.json", nil)
	if _, err := p.Open(t.Context(), p.create); err == nil || err.Error() != "create ca.json: disk full" {
		t.Errorf("Open() = %v", err)
	}
}

// readOnce is a storage in which a secret can be read only once.
type readOnce struct {
	*secrettest.Memory
	read bool
}

func (r *readOnce) Read(ctx context.Context, name string) ([]byte, string, error) {
	if r.read {
		return nil, "", errors.New("timeout")
	}
	r.read = true
	return r.Memory.Read(ctx, name)
}

// TestOpenSaysWhatItHasCreated has a storage that fails after the creation, so that a second Open could not tell
// whether this process created the state.
func TestOpenSaysWhatItHasCreated(t *testing.T) {
	storage := &readOnce{Memory: &secrettest.Memory{}}
	p := newProcess(storage)
	created, err := p.Open(t.Context(), p.create)
	if err != nil || !created {
		t.Fatalf("Open() = %v, %v, want that it has created it", created, err)
	}
	if changed, err := p.say(t.Context(), "next"); err != nil || !changed {
		t.Errorf("Change() of what was created = %v, %v", changed, err)
	}
}

// TestChange changes the storage before the process writes "next".
func TestChange(t *testing.T) {
	tests := map[string]struct {
		before func(t *testing.T, storage *secrettest.Memory, other *process)
		// changed is the result of Change, used the number of states passed to Used, word the word in use afterwards,
		// and wrong a part of the error.
		changed bool
		used    int
		word    string
		wrong   string
	}{
		"nothing": {changed: true, used: 1, word: "next"},
		"another word": {before: func(t *testing.T, _ *secrettest.Memory, other *process) {
			if _, err := other.say(t.Context(), "other"); err != nil {
				t.Error(err)
			}
		}, changed: true, used: 2, word: "next"},
		"the same word": {before: func(t *testing.T, _ *secrettest.Memory, other *process) {
			if _, err := other.say(t.Context(), "next"); err != nil {
				t.Error(err)
			}
		}, used: 1, word: "next"},
		"removed": {before: func(_ *testing.T, storage *secrettest.Memory, _ *process) {
			storage.Put("ca.json", nil)
		}, word: "first", wrong: "change ca.json: "},
		"garbage": {before: func(_ *testing.T, storage *secrettest.Memory, _ *process) {
			storage.Put("ca.json", []byte("key"))
		}, word: "first", wrong: "change ca.json: read ca.json: not JSON"},
		"restored": {before: func(_ *testing.T, storage *secrettest.Memory, other *process) {
			older := *other.Current().Set
			older.Epoch--
			data, _ := other.Current().With(&older).Encode()
			storage.Put("ca.json", data)
		}, word: "first", wrong: "epoch: 1899999999: must be at least 1900000000"},
		"disk full": {before: func(_ *testing.T, storage *secrettest.Memory, _ *process) {
			storage.Fail = func(string) error { return errors.New("disk full") }
		}, word: "first", wrong: "change ca.json: disk full"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			storage := &secrettest.Memory{}
			p, other := opened(t, storage), opened(t, storage)
			if tc.before != nil {
				tc.before(t, storage, other)
			}
			changed, err := p.say(t.Context(), "next")
			if changed != tc.changed || p.used != tc.used || p.Current().word != tc.word {
				t.Errorf("Change() = %v with %d states used and word %q, want %v, %d, %q", changed, p.used, p.Current().word, tc.changed, tc.used, tc.word)
			}
			if (err != nil) != (tc.wrong != "") || err != nil && !strings.Contains(err.Error(), tc.wrong) {
				t.Errorf("error = %v, want %q", err, tc.wrong)
			}
		})
	}
}

func TestConflictsEnd(t *testing.T) {
	storage := &secrettest.Memory{}
	p := opened(t, storage)
	tries := 0
	storage.Before = func(name string) { storage.Put(name, storage.Get(name)) } // another version
	_, err := p.Change(t.Context(), func(now *plain) (*plain, error) {
		tries++
		return now.With(now.Set), nil
	})
	if !errors.Is(err, secret.ErrConflict) || tries != maxConflicts {
		t.Errorf("Change() = %v after %d tries, want a conflict after %d", err, tries, maxConflicts)
	}
}

func TestFollow(t *testing.T) {
	storage := &secrettest.Memory{}
	p, other := opened(t, storage), opened(t, storage)
	follow := func(p *process, want bool) {
		t.Helper()
		if followed, err := p.Follow(t.Context()); err != nil || followed != want {
			t.Errorf("Follow() = %v, %v, want %v", followed, err, want)
		}
	}
	follow(p, false)
	follow(other, true) // other has read p's state
	follow(other, false)
	if _, err := other.say(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	follow(p, true)
	follow(p, false)
	follow(other, false) // other has written the state itself
	if p.used != 1 || p.Current().word != "other" {
		t.Errorf("%d states were used, and the word is %q, want 1 and other", p.used, p.Current().word)
	}
	// After the conflict, p calls decide again.
	for theirs, mine := range map[string]string{"theirs": "mine", "same": "same"} {
		if _, err := other.say(t.Context(), theirs); err != nil {
			t.Fatal(err)
		}
		if _, err := p.say(t.Context(), mine); err != nil {
			t.Fatal(err)
		}
		follow(p, true)
		follow(p, false)
	}
	storage.Put("ca.json", nil)
	if _, err := p.Follow(t.Context()); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "it was removed from the storage, but remains in use") {
		t.Errorf("Follow() = %v after it was removed", err)
	}
}

// TestSteps performs a rotation, and checks the storage and the start of each step.
func TestSteps(t *testing.T) {
	storage := &secrettest.Memory{}
	p := opened(t, storage)
	if err := p.Force(t.Context()); !errors.Is(err, ErrNoRotation) {
		t.Errorf("Force() = %v, want ErrNoRotation", err)
	}
	begun := p.now
	var from Progress // before the action
	advance := func(done bool) error {
		begin := func(next *plain) { next.word = string(next.Step()) }
		advanced, err := p.Advance(t.Context(), from, func(*plain) bool { return done }, begin)
		if now := p.Current(); advanced && now.word != string(now.Step()) {
			t.Errorf("the next step %q began with word %q", now.Step(), now.word)
		}
		if again, _ := p.Advance(t.Context(), from, func(*plain) bool { return done }, begin); again && advanced {
			t.Errorf("it has gone on from %q twice", from.Step)
		}
		return err
	}
	force := func() error { return p.Force(t.Context()) }
	start := func() error { return p.Start(t.Context(), p.newCA) }
	for _, step := range []struct {
		name   string
		act    func() error
		want   Step
		forced bool
		begins bool
		// stored certificates and keys.
		certificates, keys int
	}{
		{"advance without a rotation", func() error { return advance(true) }, StepNone, false, false, 1, 1},
		{"start", start, StepTrustBoth, false, true, 2, 2},
		{"start again", start, StepTrustBoth, false, false, 2, 2},
		{"not done", func() error { return advance(false) }, StepTrustBoth, false, false, 2, 2},
		{"force", force, StepTrustBoth, true, false, 2, 2},
		{"force again", force, StepTrustBoth, true, false, 2, 2},
		{"trust both is done", func() error { return advance(true) }, StepRenewLeaves, true, true, 2, 1},
		{"renew leaves is done", func() error { return advance(true) }, StepTrustNew, true, true, 1, 1},
		{"trust new is done", func() error { return advance(true) }, StepNone, false, true, 1, 1},
		{"the next rotation", start, StepTrustBoth, false, true, 2, 2},
	} {
		p.now, from = p.now.Add(time.Minute), p.Current().Progress()
		if step.begins {
			begun = p.now
		}
		if err := step.act(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		now := p.Current()
		if forced := now.Rotation != nil && now.Rotation.Forced; now.Step() != step.want || forced != step.forced {
			t.Errorf("%s: step %q, forced %v, want %q, %v", step.name, now.Step(), forced, step.want, step.forced)
		}
		if !now.Since.Equal(begun) {
			t.Errorf("%s: it counts since %s, want %s", step.name, now.Since, begun)
		}
		stored := storage.Get("ca.json")
		certificates, keys := bytes.Count(stored, []byte("BEGIN CERTIFICATE")), bytes.Count(stored, []byte("BEGIN PRIVATE KEY"))
		if certificates != step.certificates || keys != step.keys {
			t.Errorf("%s: %d certificates and %d keys are stored, want %d and %d", step.name, certificates, keys, step.certificates, step.keys)
		}
	}
}
